"""Ids of spoken answers carry their transcript, and nothing that is not theirs."""

from __future__ import annotations

import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_gateway.openai.spoken import TRANSCRIPT_BYTES, spoken_id, transcript_of
from hypothesis import given
from hypothesis import strategies as st

LATER = 2**40


@given(st.text())
def test_a_transcript_comes_back(text: str) -> None:
    answer_id = spoken_id(text, LATER)
    assert transcript_of(answer_id, "id") == text.encode("utf-8", "replace").decode()
    assert set(answer_id) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_an_id_is_shorter_than_what_was_said() -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it rests for a while. " * 20
    assert len(spoken_id(text, LATER)) < len(text)


@given(st.text(max_size=60))
def test_anything_else_is_refused_by_its_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        transcript_of(text, "messages[0].audio.id")
    assert refused.value.field == "messages[0].audio.id"


@pytest.mark.parametrize(
    "answer_id",
    [
        spoken_id("x" * (TRANSCRIPT_BYTES + 1), LATER),
        spoken_id("Hello there", LATER)[:-4],
        spoken_id("Hello there", LATER).removeprefix("audio_"),
        spoken_id("Hello there", 1),
    ],
    ids=["too-long", "cut", "unmarked", "expired"],
)
def test_broken_and_expired_ids_are_refused(answer_id: str) -> None:
    with pytest.raises(InvalidArgument):
        transcript_of(answer_id, "id")
