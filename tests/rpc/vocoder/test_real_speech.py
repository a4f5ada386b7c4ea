"""StreamSpeech with the real Piper voice and real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.errors import Unavailable
from antiphon_core.lifecycle import State
from antiphon_vocoder.config import VocoderSettings
from antiphon_vocoder.engine.stream import window_stops
from antiphon_vocoder.text.prepare import prepare_segment
from antiphon_vocoder.text.segmentation import SENTENCE_LIMIT, TextSegmenter
from antiphon_vocoder.tts.piper import PiperVoice
from antiphon_vocoder.tts.trim import SilenceTrimmer
from numpy.typing import NDArray
from speech_bench import RATE, SpeechBench, running
from test_spoken_gates import SENTENCES

FOX = "The quick brown fox jumps over the lazy dog."
TEXT = f"{FOX} It was not the first time."


@pytest.fixture(scope="module")
def loop_runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def bench(loop_runner: asyncio.Runner) -> Iterator[SpeechBench]:
    """One service for the module: loading the voice takes seconds."""
    service: AsyncIterator[SpeechBench] = running(slots=8)  # pyright: ignore[reportAssignmentType]
    made = loop_runner.run(service.__aenter__())  # pyright: ignore[reportAttributeAccessIssue]
    yield made
    loop_runner.run(service.__aexit__(None, None, None))  # pyright: ignore[reportAttributeAccessIssue]


def test_speech_has_the_length_and_level_of_speech(
    bench: SpeechBench, loop_runner: asyncio.Runner
) -> None:
    spoken = loop_runner.run(bench.say(FOX))
    seconds = len(spoken.samples) / 22050
    assert 2.0 < seconds < 4.0
    level = np.sqrt(np.mean((spoken.samples / 32768) ** 2))
    assert 0.02 < level < 0.3
    assert np.abs(spoken.samples).max() <= round(0.99 * 32767)
    # One mark at most a word, at a word's end, evenly enough to cut a transcript by.
    offsets = [offset for offset, _ in spoken.marks]
    places = [sample for _, sample in spoken.marks]
    assert offsets == [index for index in range(1, 45) if FOX[index : index + 1] in (" ", "")]
    assert places == sorted(places)
    assert spoken.marks[-1] == (len(FOX), len(spoken.samples))
    fox_ends = spoken.marks[offsets.index(19)][1]
    assert 0.2 < fox_ends / len(spoken.samples) < 0.6
    # Trimmed: speech begins at once and ends with the sentence's pause.
    assert np.abs(spoken.samples[: int(0.03 * 22050)]).max() > 100
    assert np.abs(spoken.samples[-int(0.19 * 22050) :]).max() == 0


def test_cuts_neighbours_and_reused_slots_change_nothing(
    bench: SpeechBench, loop_runner: asyncio.Runner
) -> None:
    async def speak() -> None:
        whole = await bench.say(TEXT)
        pieces = [TEXT[i : i + 9] for i in range(0, len(TEXT), 9)]
        together = await asyncio.gather(
            bench.say(TEXT, pieces=pieces),
            bench.say(TEXT),
            bench.say("Something else entirely is said here."),
        )
        assert together[0].data == together[1].data == whole.data
        assert together[0].marks == together[1].marks == whole.marks
        assert together[2].data != whole.data

    loop_runner.run(speak())


@dataclass(frozen=True)
class Whole:
    """A text spoken without windows, messages or company."""

    samples: NDArray[np.float32]
    joins: list[int]
    """Where the service decodes the next window: samples from the begin."""


async def spoken_whole(bench: SpeechBench, voice: PiperVoice, sentence: str) -> Whole:
    """A sentence decoded at once."""
    segmenter = TextSegmenter(first_clause=False, limit=SENTENCE_LIMIT)
    (segment,) = [*segmenter.feed(sentence), *segmenter.flush()]
    catalog_voice = bench.runtime.catalog.default
    prepared = await prepare_segment(segment, catalog_voice, bench.runtime.phonemizer)
    latent = voice.encode(prepared.ids, speed=1.0, noiseless=True)
    trimmer = SilenceTrimmer(voice.sample_rate)
    samples = trimmer.push(voice.decode(latent, 0, latent.frames))
    rate = voice.sample_rate / voice.samples_per_frame
    stops = window_stops(latent.frames, rate, first=True)
    joins = [stop * voice.samples_per_frame - trimmer.skipped for stop in stops[:-1]]
    gain = VocoderSettings().gain
    return Whole(np.clip(samples * gain, -0.99, 0.99), [j for j in joins if j < len(samples)])


def level_db(samples: NDArray[np.float32]) -> float:
    return 10 * float(np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-9))


def spectral_flux(samples: NDArray[np.float32]) -> NDArray[np.float64]:
    """Growth of the log spectrum from each 20 ms frame to the next, (n - 1,)."""
    frame = RATE // 50
    whole = samples[: len(samples) // frame * frame].reshape(-1, frame) * np.hanning(frame)
    spectra = np.log(np.abs(np.fft.rfft(whole)) + 1e-3)
    return np.maximum(np.diff(spectra, axis=0), 0).mean(1)


@pytest.mark.parametrize(
    "sentences", [[FOX, "No."], pytest.param(SENTENCES, marks=pytest.mark.slow)]
)
def test_no_join_is_heard_and_no_tail_is_lost(
    bench: SpeechBench, loop_runner: asyncio.Runner, sentences: list[str]
) -> None:
    """Gates 2 and 3: streamed speech is the whole decode, so no window has a timbre of its own."""
    voice = PiperVoice(bench.runtime.catalog.default.file, 1)
    joins = 0
    for sentence in sentences:
        whole = loop_runner.run(spoken_whole(bench, voice, sentence))
        spoken = loop_runner.run(bench.say(sentence, chunking=pb.CHUNKING_SENTENCE))
        streamed = spoken.samples / np.float32(32768)
        length = len(whole.samples)
        assert len(streamed) == length + int(0.2 * RATE)
        np.testing.assert_allclose(streamed[:length], whole.samples, atol=2.1 / 32768)
        tail = slice(max(length - RATE // 10, 0), length)
        assert abs(level_db(streamed[tail]) - level_db(whole.samples[tail])) < 1.0
        half = RATE // 100
        ours, reference = spectral_flux(streamed[:length]), spectral_flux(whole.samples)
        for join in whole.joins:
            near = slice(max(join - half, 0), join + half)
            assert abs(level_db(streamed[near]) - level_db(whole.samples[near])) < 1.0
            frame = min(join // (2 * half), len(ours)) - 1
            assert ours[frame] <= max(np.quantile(reference, 0.99), 1.05 * reference[frame])
        joins += len(whole.joins)
    assert joins


def test_speed_and_noise(bench: SpeechBench, loop_runner: asyncio.Runner) -> None:
    normal = loop_runner.run(bench.say(FOX))
    fast = loop_runner.run(bench.say(FOX, speed=2.0))
    assert 0.4 < len(fast.samples) / len(normal.samples) < 0.7

    async def together() -> list[bytes]:
        keys = [1, None, 1, None, 1, None]
        streams = await asyncio.gather(*(bench.say("Yes.", noise_key=key) for key in keys))
        return [spoken.data for spoken in streams]

    # The noise of a stream without a key is its own; with a key there is nothing that is drawn.
    heard = loop_runner.run(together())
    assert len(set(heard[::2])) == 1
    assert len(set(heard)) == 4


def test_killed_workers_are_typed_errors_and_come_back(
    bench: SpeechBench, loop_runner: asyncio.Runner
) -> None:
    async def kill_engine() -> None:
        pid = bench.runtime.engine.pid
        assert pid is not None
        speaking = asyncio.create_task(bench.say(f"{TEXT} " * 20))
        while bench.runtime.slots.busy == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable) as error:
            await speaking
        assert time.monotonic() - killed_at < 1.0
        assert error.value.reason == "WORKER_DIED"
        assert error.value.retry_after is not None
        assert bench.lifecycle.state is State.DEGRADED
        # The next request waits for the new process.
        assert (await bench.say(FOX)).kinds[-1] == "finished"
        assert bench.lifecycle.state is State.READY
        await bench.until_idle()

    async def kill_phonemizer() -> None:
        pid = bench.runtime.phonemizer.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # A request that meets the dead process is asked again of the next.
        assert (await bench.say(FOX)).kinds[-1] == "finished"

    before = bench.runtime.worker_restarts
    loop_runner.run(kill_engine())
    loop_runner.run(kill_phonemizer())
    assert bench.runtime.worker_restarts == before + 2
