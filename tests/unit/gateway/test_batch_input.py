"""Whatever a batch's input is, the check ends with lines or with errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from antiphon_gateway.batches.settings import BatchSettings
from antiphon_gateway.batches.validation import REPORTED_ERRORS, CheckedInput, check_input
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ENDPOINT = "/v1/completions"
GOOD = {"custom_id": "a", "method": "POST", "url": ENDPOINT, "body": {"prompt": "x"}}


def check(path: Path, content: bytes, **bounds: int) -> CheckedInput:
    path.write_bytes(content)
    return check_input(path, ENDPOINT, BatchSettings.model_validate(bounds))


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")),
            st.fixed_dictionaries(
                {},
                optional={
                    "custom_id": st.one_of(st.text(max_size=3), st.integers()),
                    "method": st.sampled_from(["POST", "GET"]),
                    "url": st.sampled_from([ENDPOINT, "/x"]),
                    "body": st.one_of(st.just({}), st.none(), st.just({"stream": True})),
                },
            ).map(lambda line: json.dumps(line).encode()),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_lines(tmp_path: Path, lines: list[bytes]) -> None:
    found = check(tmp_path / "in", b"\n".join(lines) + b"\n")
    assert found.line_count == len(lines)
    assert all(1 <= (error.line or 1) <= len(lines) for error in found.errors)
    descriptor = os.open(tmp_path / "in", os.O_RDONLY)
    try:
        read = [found.read(descriptor, number) for number in range(found.line_count)]
    finally:
        os.close(descriptor)
    assert [text.removesuffix(b"\n") for text in read] == lines


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_last_line_may_end_or_not(tmp_path: Path, end: bytes) -> None:
    found = check(tmp_path / "in", json.dumps(GOOD).encode() + end)
    assert (found.line_count, found.errors) == (1, [])


def test_deep_and_broken_text_is_an_error_not_a_crash(tmp_path: Path) -> None:
    for text in (b"[" * 100_000, b'{"custom_id":"\\ud800"}', b"\xff\xfe", b"\0", b"null"):
        assert [error.code for error in check(tmp_path / "in", text).errors] == [
            "invalid_json_line"
        ]


def test_bounds(tmp_path: Path) -> None:
    lines = [json.dumps({**GOOD, "custom_id": str(number)}).encode() for number in range(5)]
    content = b"\n".join(lines)
    assert check(tmp_path / "in", content, max_lines=5).errors == []
    (error,) = check(tmp_path / "in", content, max_lines=4).errors
    assert (error.code, error.line) == ("too_many_lines", 5)
    (error,) = check(tmp_path / "in", b" " * 1025, max_bytes=1024).errors
    assert error.code == "file_too_large"
    many = check(tmp_path / "in", b"x\n" * 500)
    assert len(many.errors) == REPORTED_ERRORS and many.line_count == 500
