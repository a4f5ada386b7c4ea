"""Speech tokens become whole frames of codes, however they are cut; the rest stays text."""

from __future__ import annotations

import pytest
from antiphon_llm.front.speech_codes import SpeechCodes
from antiphon_llm.output_spec import KEY, OutputSpec, OutputSpecError, read_output_spec
from hypothesis import given
from hypothesis import strategies as st

GOOD = {
    "codec": "mimi", "frame_rate": 12.5, "layout": "interleaved", "codebook_size": 10,
    "first_code_ids": [100, 110, 120], "start_id": 98, "end_id": 99,
}  # fmt: skip


def spec_of(**change: object) -> OutputSpec:
    spec = read_output_spec({KEY: GOOD | change}, 130)
    assert spec is not None
    return spec


SPEC = spec_of()
SHARED = spec_of(first_code_ids=[100, 100])


def sorted_out(
    tokens: list[int], spec: OutputSpec = SPEC
) -> tuple[list[int], list[int], SpeechCodes]:
    speech = SpeechCodes(spec)
    text = [token for token in tokens if not speech.push(token)]
    speech.finish()
    run = speech.take()
    return text, [] if run is None else list(run.codes), speech


def test_words_markers_and_frames_are_told_apart() -> None:
    tokens = [5, 98, 101, 112, 123, 104, 115, 126, 99, 6]
    text, codes, speech = sorted_out(tokens)
    assert text == [5, 6]
    assert codes == [1, 2, 3, 4, 5, 6]
    assert speech.token_count == 6


@pytest.mark.parametrize(
    ("tokens", "codes"),
    [
        ([101, 112], []),
        ([101, 112, 99, 123], []),
        ([101, 5, 112, 6, 123], [1, 2, 3]),
        ([112, 123, 101, 112, 123], [1, 2, 3]),
        ([101, 123, 101, 112, 123], [1, 2, 3]),
        ([101, 102, 113, 124], [2, 3, 4]),
    ],
    ids=["cut", "marker inside", "words between", "begins inside", "one left out", "one twice"],
)
def test_only_whole_frames_leave(tokens: list[int], codes: list[int]) -> None:
    assert sorted_out(tokens)[1] == codes


def test_codebooks_may_share_their_ids() -> None:
    assert sorted_out([103, 107, 101, 101], SHARED)[1] == [3, 7, 1, 1]


@given(st.lists(st.integers(90, 130), max_size=60), st.sets(st.integers(0, 60)))
def test_any_cut_gives_the_same_frames(tokens: list[int], cuts: set[int]) -> None:
    speech, codes = SpeechCodes(SPEC), []
    for place, token in enumerate(tokens):
        speech.push(token)
        run = speech.take() if place in cuts else None
        codes += [] if run is None else run.codes
        assert len(codes) % 3 == 0
    run = speech.take()
    codes += [] if run is None else run.codes
    assert codes == sorted_out(tokens)[1]


def test_a_model_without_the_key_writes_text() -> None:
    assert read_output_spec({}) is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rate": 1}, "rate is not known"),
        ({"layout": "delayed"}, "allowed: interleaved"),
        ({"frame_rate": 0}, "frame_rate"),
        ({"frame_rate": True}, "frame_rate"),
        ({"codebook_size": 0}, "codebook_size"),
        ({"first_code_ids": []}, "first_code_ids"),
        ({"first_code_ids": [100, 105]}, "overlap"),
        ({"first_code_ids": [-1]}, r"first_code_ids\[0\]"),
        ({"first_code_ids": [125]}, "vocabulary 0 to 129"),
        ({"start_id": 101}, "is a marker and a code"),
        ({"codec": 1}, "codec"),
    ],
)
def test_a_wrong_spec_names_its_key(change: dict, named: str) -> None:
    with pytest.raises(OutputSpecError, match=named):
        read_output_spec({KEY: GOOD | change}, 130)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(OutputSpecError, match="codebook_size is required"):
        read_output_spec({KEY: {"frame_rate": 1, "first_code_ids": [1]}})
