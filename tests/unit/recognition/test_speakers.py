"""Who speaks: labels by nearness, known speakers, and what a failure costs."""

from __future__ import annotations

import io
import queue
import time
import wave
from itertools import pairwise

import numpy as np
import pytest
import soxr
from antiphon_core.errors import FailedPrecondition, InvalidArgument
from antiphon_vocoder.recognition.messages import DecodeOptions, Final, Segment
from antiphon_vocoder.recognition.passes import PassQueue
from antiphon_vocoder.recognition.segmenter import Pause, Utterance
from antiphon_vocoder.recognition.speakers import model as speaker_model
from antiphon_vocoder.recognition.speakers.centroid import SpeakerTracker, Voice
from antiphon_vocoder.recognition.speakers.embedder import RATE, Embedding, unit
from antiphon_vocoder.recognition.speakers.model import SpeakerModel
from antiphon_vocoder.recognition.speakers.options import KnownSpeaker, SpeakerOptions

from tests.unit.recognition.fakes import SpanRecognizer
from tests.unit.recognition.piper_speech import SENTENCES, pcm16, speak

SAME = 0.7


def at(degrees: float, seconds: float = 3.0) -> Voice:
    """A voice whose cosine to another is that of the angle between them."""
    angle = np.deg2rad(degrees)
    return Voice(seconds, unit(np.array([np.cos(angle), np.sin(angle), 0.0])))


def other(voice: Voice) -> Embedding:
    assert voice.embedding is not None
    return voice.embedding


def test_voices_are_labelled_in_order_of_appearance_and_found_again() -> None:
    tracker = SpeakerTracker(SAME, 8)
    heard = [at(0), at(90), at(10), at(80), at(180), at(-10)]
    assert tracker.labels(heard) == ["A", "B", "A", "B", "C", "A"]
    again = SpeakerTracker(SAME, 8)
    assert [again.labels([voice])[0] for voice in heard] == ["A", "B", "A", "B", "C", "A"]


def test_a_centroid_follows_its_voice() -> None:
    tracker = SpeakerTracker(SAME, 8)
    drifting = [at(degrees) for degrees in range(0, 61, 15)]
    assert tracker.labels(drifting) == ["A"] * 5
    assert other(at(0)) @ other(at(60)) < SAME, "alone, the last would be another"


def test_a_long_segment_must_be_more_alike() -> None:
    for seconds, label in ((1.6, "A"), (4.0, "A"), (6.6, "B"), (60.0, "B")):
        tracker = SpeakerTracker(SAME, 8, rise=0.02)
        assert tracker.labels([at(0), at(40, seconds)]) == ["A", label], "cosine 0.766"


def test_what_cannot_be_told_has_the_speaker_before_it() -> None:
    tracker = SpeakerTracker(SAME, 8)
    short = Voice(0.3)
    assert tracker.labels([short]) == [""], "nobody has spoken"
    assert tracker.labels([at(0), short, at(90), short]) == ["A", "A", "B", "B"]
    assert tracker.labels([Voice(3.0, failed=True), short]) == ["", "B"]
    assert tracker.labels([at(200, seconds=0.7), at(200)]) == ["B", "C"], "short opens no speaker"


def test_voices_beyond_the_cap_have_the_nearest_label() -> None:
    tracker = SpeakerTracker(SAME, 2)
    assert tracker.labels([at(0), at(90), at(180), at(-60), at(180)]) == ["A", "B", "B", "A", "B"]
    assert tracker.labels([at(0), at(90)]) == ["A", "B"], "centroids have not moved to the others"


def test_known_speakers_have_names_letters_are_for_the_others() -> None:
    known = {"A": other(at(0)), "Ben": other(at(90))}
    tracker = SpeakerTracker(SAME, 3, known)
    assert tracker.labels([at(5), at(180), at(85), at(-80)]) == ["A", "B", "Ben", "A"]
    tracker = SpeakerTracker(SAME, 8, known)
    assert tracker.labels([at(40)] * 40 + [at(-42)]) == ["A"] * 41, "a sample stays what it is"


def wav(audio: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(pcm16(audio))
    return buffer.getvalue()


def high(text: str) -> np.ndarray:
    """The same words from a smaller head: pitch and formants a fourth higher."""
    return soxr.resample(speak(text), RATE * 1.3, RATE).astype(np.float32)


def known(name: str, audio: bytes) -> SpeakerOptions:
    return SpeakerOptions([KnownSpeaker(name, audio)], 8)


@pytest.fixture(scope="module")
def speakers() -> SpeakerModel:
    return SpeakerModel(None)


def segment(audio: np.ndarray, first: int = 0) -> Segment:
    end = (first + len(audio)) * 1000 // RATE
    return Segment("words", first * 1000 // RATE, end, [1], 0.0, -0.1, 1.0, 0.0, [])


def test_real_voices_are_told_apart_and_a_known_one_is_named(speakers: SpeakerModel) -> None:
    tracker = speakers.submit(known("Ann", wav(high(SENTENCES[0])))).result()
    parts = [speak(SENTENCES[1]), high(SENTENCES[1]), speak(SENTENCES[0]), high(SENTENCES[0])]
    starts = np.cumsum([0, *map(len, parts)])
    segments = [segment(part, first) for part, first in zip(parts, starts[:-1], strict=True)]
    voices = speakers.voices(np.concatenate(parts), segments)
    assert tracker.labels(voices) == ["A", "Ann", "A", "Ann"]
    likeness = [float(other(one) @ other(two)) for one, two in pairwise(voices)]
    assert max(likeness) < 0.66, "neighbours are other voices"


@pytest.mark.parametrize(
    ("audio", "problem"),
    [
        (wav(np.full(RATE, 0.1, np.float32)), "2 to 10 s.*1.00 s"),
        (wav(np.full(11 * RATE, 0.1, np.float32)), "2 to 10 s.*more than 10 s"),
        (wav(np.zeros(3 * RATE, np.float32)), "no voice"),
        (b"no audio", "cannot be decoded"),
    ],
)
def test_a_sample_that_cannot_serve_is_named(
    speakers: SpeakerModel, audio: bytes, problem: str
) -> None:
    options = SpeakerOptions(
        [KnownSpeaker("Ann", wav(high(SENTENCES[0]))), KnownSpeaker("Bob", audio)], 8
    )
    with pytest.raises(InvalidArgument, match=problem) as caught:
        speakers.tracker(options)
    assert caught.value.field == "config.diarization.known_speakers[1].audio"
    assert caught.value.reason == "INVALID_AUDIO"


def test_without_a_model_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaker_model, "packaged_model", lambda: None)
    missing = SpeakerModel(None)
    assert not missing.is_available
    with pytest.raises(FailedPrecondition, match=r"install.*or set recognition") as caught:
        missing.tracker(SpeakerOptions([], 8))
    assert caught.value.reason == "SPEAKER_MODEL_MISSING"


class BrokenEmbedder:
    name = "broken"
    same_voice = 0.5
    rise = 0.0

    def embed(self, audio: np.ndarray) -> Embedding:
        raise RuntimeError("the model is broken")


def queue_with(speakers: SpeakerModel, tracker: SpeakerTracker) -> tuple[PassQueue, queue.Queue]:
    sent: queue.Queue[object] = queue.Queue()
    passes = PassQueue(SpanRecognizer(), sent.put, speakers=speakers)
    passes.start()
    passes.open(7, DecodeOptions(), partials=False, speakers=tracker)
    return passes, sent


def finals(sent: queue.Queue, count: int) -> list[Final]:
    found = [sent.get(timeout=20) for _ in range(count)]
    assert all(isinstance(item, Final) for item in found)
    return found


def test_finals_have_labels_also_those_that_were_heard_ahead(speakers: SpeakerModel) -> None:
    passes, sent = queue_with(speakers, speakers.tracker(SpeakerOptions([], 8)))
    before = speakers.totals.voices
    parts = [speak(SENTENCES[1]), high(SENTENCES[0]), speak(SENTENCES[0])]
    first = 0
    for number, audio in enumerate(parts):
        if number == 1:
            passes.submit_ahead(7, Pause(number, first, audio))
            limit = time.monotonic() + 20
            while not passes.heard(7, Pause(number, first, audio))[0]:
                assert time.monotonic() < limit
                time.sleep(0.002)
        passes.submit_final(7, Utterance(number, first, audio, first, first + len(audio), ""))
        first += len(audio)
    labels = [final.segments[0].speaker for final in finals(sent, 3)]
    passes.stop()
    assert labels == ["A", "B", "A"]
    assert passes.totals.speculative_hits == 1
    assert speakers.totals.voices - before == 3, "what was heard ahead is not embedded again"


def test_a_failing_model_costs_the_label_and_not_the_text() -> None:
    broken = SpeakerModel(None)
    broken._embedder = BrokenEmbedder()
    passes, sent = queue_with(broken, SpeakerTracker(0.5, 8))
    audio = np.full(2 * RATE, 0.1, np.float32)
    passes.submit_final(7, Utterance(0, 0, audio, 0, len(audio), ""))
    (final,) = finals(sent, 1)
    passes.stop()
    assert (final.text, final.segments[0].speaker) == (f"{len(audio)} samples", "")
    assert (broken.totals.voices, broken.totals.failures) == (1, 1)
