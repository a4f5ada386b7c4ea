"""Multipart forms with one file, parsed as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from antiphon_core.errors import InvalidArgument
from python_multipart.exceptions import FormParserError, MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELDS = 128
MAX_FIELD_BYTES = 64 * 1024
_SINK_BYTES = 1024 * 1024


@dataclass
class UploadedFile:
    """The form's file."""

    name: str
    content_type: str
    data: bytearray = field(default_factory=bytearray)


@dataclass
class Form:
    """Fields in order of arrival, and the file if there was one."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    file: UploadedFile | None = None


async def read_form(
    chunks: AsyncIterator[bytes],
    content_type: bytes,
    file_field: str,
    sink: Callable[[bytes], Awaitable[None]] | None = None,
    *,
    field_bytes: Mapping[str, int] = MappingProxyType({}),
    on_file: Callable[[Form], None] | None = None,
) -> Form:
    """Parses a multipart/form-data body.

    Args:
        chunks: the body; its bounds are enforced where it is read.
        content_type: the request's header.
        file_field: name of the field that carries the file.
        sink: takes the file piece by piece; without one it is collected in the form.
        field_bytes: most bytes of those fields that may have other than MAX_FIELD_BYTES, by name
            without brackets; of the file too, which is unbounded else, unless it goes to a sink.
        on_file: called when the file begins, with the fields before it; may refuse the form.

    Raises:
        InvalidArgument: UNSUPPORTED_MEDIA_TYPE, a malformed body, or too many fields.
    """
    media_type, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if media_type != b"multipart/form-data" or not boundary:
        raise InvalidArgument(
            "the body must be multipart/form-data with a boundary",
            reason="UNSUPPORTED_MEDIA_TYPE",
        )
    collector = _Collector(file_field, field_bytes, on_file)
    try:
        parser = MultipartParser(boundary, collector.callbacks())
        async for chunk in chunks:
            parser.write(chunk)
            file = collector.form.file
            if sink is not None and file is not None and len(file.data) >= _SINK_BYTES:
                await _drain(file, sink)
        parser.finalize()
    except (MultipartParseError, FormParserError) as error:
        raise InvalidArgument(f"the multipart body is malformed: {error}") from None
    if not collector.is_complete:
        raise InvalidArgument("the multipart body ends before its closing boundary")
    if sink is not None and collector.form.file is not None:
        await _drain(collector.form.file, sink)
    return collector.form


async def _drain(file: UploadedFile, sink: Callable[[bytes], Awaitable[None]]) -> None:
    data = bytes(file.data)
    file.data.clear()
    await sink(data)


class _Collector:
    """Receives the parser's callbacks."""

    def __init__(
        self,
        file_field: str,
        field_bytes: Mapping[str, int],
        on_file: Callable[[Form], None] | None,
    ) -> None:
        self.form = Form()
        self.is_complete = False
        self._file_field = file_field
        self._field_bytes = field_bytes
        self._on_file = on_file
        self._limit: int | None = None
        self._header_name = b""
        self._header_value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._target = bytearray()
        self._is_file = False
        self._count = 0

    def callbacks(self) -> MultipartCallbacks:
        """The callbacks by the parser's names."""
        return {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_piece,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def _part_begin(self) -> None:
        self._headers = {}
        self._count += 1
        if self._count > MAX_FIELDS:
            raise InvalidArgument(f"the form has more than {MAX_FIELDS} fields")

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_piece(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if not self._name:
            raise InvalidArgument("a part of the form has no name")
        self._is_file = self._name == self._file_field and b"filename" in options
        self._target = bytearray()
        usual = None if self._is_file else MAX_FIELD_BYTES
        self._limit = self._field_bytes.get(self._name.partition("[")[0], usual)
        if self._is_file:
            if self._on_file is not None:
                self._on_file(self.form)
            if self.form.file is not None:
                raise InvalidArgument(f"{self._file_field} was sent twice", field=self._file_field)
            content_type = self._headers.get(b"content-type", b"").decode("latin-1")
            name = options[b"filename"].decode("utf-8", "replace")
            self.form.file = UploadedFile(name, content_type, self._target)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        self._target += data[start:end]
        if self._limit is not None and len(self._target) > self._limit:
            raise InvalidArgument(
                f"{self._name} has more than {self._limit} bytes",
                reason="TOO_LARGE",
                field=self._name,
                metadata={"limit": str(self._limit)},
            )

    def _part_end(self) -> None:
        if not self._is_file:
            try:
                value = self._target.decode("utf-8")
            except UnicodeDecodeError:
                raise InvalidArgument(
                    f"{self._name} is not valid UTF-8", field=self._name
                ) from None
            self.form.fields.setdefault(self._name, []).append(value)

    def _end(self) -> None:
        self.is_complete = True
