"""Checks a batch's input file, naming each wrong line."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import msgspec
from msgspec import Raw, Struct, field

from antiphon_gateway.batches.settings import BatchSettings
from antiphon_gateway.store.records import LineError

REPORTED_ERRORS = 100
MAX_CUSTOM_ID = 512


class Line(Struct):
    """One request of a batch."""

    custom_id: str
    method: str
    url: str
    body: Raw


class _Body(Struct):
    stream: bool | None = None


class CheckedInput(Struct):
    """What the check found."""

    offsets: array[int] = field(default_factory=lambda: array("Q", [0]))
    """Where each line begins in the file, and behind the last one where it ends."""
    errors: list[LineError] = field(default_factory=list)
    """The first of them; none means that the batch can run."""

    @property
    def line_count(self) -> int:
        """Requests in the file."""
        return len(self.offsets) - 1

    def read(self, descriptor: int, number: int) -> bytes:
        """The text of a line, counted from 0, of the open file."""
        start, end = self.offsets[number], self.offsets[number + 1]
        return os.pread(descriptor, end - start, start)


def check_input(path: Path, endpoint: str, settings: BatchSettings) -> CheckedInput:
    """Reads the whole file once; blocking, so run it in a thread.

    Args:
        path: the input.
        endpoint: path that every line must name.
        settings: bounds.
    """
    found = CheckedInput()
    if path.stat().st_size > settings.max_bytes:
        message = f"the file has more than {settings.max_bytes} bytes"
        found.errors.append(LineError("file_too_large", message))
        return found
    seen: dict[str, int] = {}
    position = 0
    with path.open("rb") as stream:
        for number, text in enumerate(stream, 1):
            if number > settings.max_lines:
                message = f"the file has more than {settings.max_lines} lines"
                found.errors.append(LineError("too_many_lines", message, number))
                return found
            position += len(text)
            found.offsets.append(position)
            error = _check_line(text, number, endpoint, seen)
            if error is not None and len(found.errors) < REPORTED_ERRORS:
                found.errors.append(error)
    if found.line_count == 0:
        found.errors.append(LineError("empty_file", "the file has no line"))
    return found


def _check_line(text: bytes, number: int, endpoint: str, seen: dict[str, int]) -> LineError | None:
    try:
        line = msgspec.json.decode(text, type=Line)
        body = msgspec.json.decode(line.body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return LineError("invalid_json_line", f"not a request object: {error}", number)
    if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id must have 1 to {MAX_CUSTOM_ID} characters"
        return LineError("invalid_custom_id", message, number, "custom_id")
    if line.custom_id in seen:
        message = f"custom_id {line.custom_id!r} stands in line {seen[line.custom_id]} too"
        return LineError("duplicate_custom_id", message, number, "custom_id")
    seen[line.custom_id] = number
    if line.method != "POST":
        return LineError("invalid_method", "method must be POST", number, "method")
    if line.url != endpoint:
        message = f"url must be the batch's endpoint {endpoint}, got {line.url[:200]!r}"
        return LineError("mismatched_endpoint", message, number, "url")
    if body.stream:
        return LineError("invalid_value", "a batch has no streams", number, "body.stream")
    return None
