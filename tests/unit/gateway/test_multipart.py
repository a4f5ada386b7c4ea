"""Forms parse the same however they are cut."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_gateway.multipart import MAX_FIELD_BYTES, MAX_FIELDS, Form, read_form
from hypothesis import given, settings
from hypothesis import strategies as st

TYPE = b"multipart/form-data; boundary=xyz"
FILE = bytes(range(256)) * 3 + b"\r\n--xy\r\n"


def field(name: str, value: bytes, filename: str = "") -> bytes:
    extra = f'; filename="{filename}"' if filename else ""
    head = f'--xyz\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + value + b"\r\n"


BODY = (
    field("model", "whïsper".encode())
    + field("tag[]", b"a")
    + field("file", FILE, "a.wav")
    + field("tag[]", b"b")
    + b"--xyz--\r\n"
)


async def parse(body: bytes, cuts: list[int], content_type: bytes = TYPE) -> Form:
    async def pieces() -> AsyncIterator[bytes]:
        edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
        for start, end in itertools.pairwise(edges):
            yield body[start:end]

    return await read_form(pieces(), content_type, "file")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=12))
async def test_any_cut(cuts: list[int]) -> None:
    form = await parse(BODY, cuts)
    assert form.fields == {"model": ["whïsper"], "tag[]": ["a", "b"]}
    assert form.file is not None
    assert (form.file.name, bytes(form.file.data)) == ("a.wav", FILE)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (BODY[:-10], "INVALID_VALUE"),
        (b"nothing", "INVALID_VALUE"),
        (field("file", b"1", "a") + BODY, "INVALID_VALUE"),
        (field("x", b"\xff") + BODY, "INVALID_VALUE"),
        (field("x", b"1" * (MAX_FIELD_BYTES + 1)) + BODY, "TOO_LARGE"),
        (b"".join(field("x", b"") for _ in range(MAX_FIELDS + 1)) + BODY, "INVALID_VALUE"),
    ],
)
async def test_refusals(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        await parse(body, [])
    assert error.value.reason == reason


async def test_a_form_may_be_refused_before_its_file_is_read() -> None:
    seen: list[Form] = []
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        for piece in (field("model", b"m"), field("file", FILE, "a.wav"), b"--xyz--\r\n"):
            read += 1
            yield piece

    def refuse(form: Form) -> None:
        seen.append(form)
        raise InvalidArgument("no")

    with pytest.raises(InvalidArgument, match="no"):
        await read_form(pieces(), TYPE, "file", on_file=refuse)
    assert read == 2 and seen[0].fields == {"model": ["m"]} and seen[0].file is None


@pytest.mark.parametrize("name", ["big", "big[]", "big[1]"])
async def test_a_field_may_have_a_bound_of_its_own(name: str) -> None:
    async def parse_field(size: int) -> Form:
        async def pieces() -> AsyncIterator[bytes]:
            yield field(name, b"1" * size) + b"--xyz--\r\n"

        return await read_form(pieces(), TYPE, "file", field_bytes={"big": MAX_FIELD_BYTES * 2})

    form = await parse_field(MAX_FIELD_BYTES * 2)
    assert len(form.fields[name][0]) == MAX_FIELD_BYTES * 2
    with pytest.raises(InvalidArgument) as error:
        await parse_field(MAX_FIELD_BYTES * 2 + 1)
    assert error.value.reason == "TOO_LARGE"


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_file_may_have_a_bound(missing: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield BODY

    reading = read_form(pieces(), TYPE, "file", field_bytes={"file": len(FILE) - missing})
    if not missing:
        form = await reading
        assert form.file is not None and bytes(form.file.data) == FILE
        return
    with pytest.raises(InvalidArgument) as error:
        await reading
    assert (error.value.reason, error.value.field) == ("TOO_LARGE", "file")


@pytest.mark.parametrize("content_type", [b"", b"application/json", b"multipart/form-data"])
async def test_other_media_types(content_type: bytes) -> None:
    with pytest.raises(InvalidArgument) as error:
        await parse(BODY, [], content_type)
    assert error.value.reason == "UNSUPPORTED_MEDIA_TYPE"
