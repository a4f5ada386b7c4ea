"""The whisper engines on processor cores: one model, CTranslate2 and torch, alone and in a batch.

A part of :mod:`bench.speech_cpu`, in its process and on both cores: a pass at a time by each engine
in turns, then as many at once as the torch engine batches, and faster-whisper in its own process
where that is there. Torch runs the packaged weights, converted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import jiwer
import numpy as np
import torch
from antiphon_vocoder.recognition.config import RecognitionSettings
from antiphon_vocoder.recognition.messages import DecodeOptions
from antiphon_vocoder.recognition.whisper.features import RATE, LogMel
from antiphon_vocoder.recognition.whisper.opening import (
    EngineOptions,
    open_recognizer,
    packaged_model,
)
from antiphon_vocoder.recognition.whisper.recognizer import WhisperRecognizer
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary
from antiphon_vocoder.recognition.whisper_torch.backend import TorchBackend
from antiphon_vocoder.recognition.whisper_torch.model import WhisperModel

from bench.report import Report
from bench.whisper_checkpoints import converted_checkpoint

REPEATS = 5
LANES = 8
THREADS = 2


@dataclass
class Findings:
    """Medians of seconds of work to a second of audio.

    Attributes:
        wall, cpu: of ctranslate and torch one pass at a time, and of torch's batch; cpu counts
            the seconds of both cores.
        mean_rows: rows of a decoder's step in the batch.
        encoder: wall time of torch's encoder alone.
        peer: wall time of faster-whisper.
        different_words: word error rate of torch's texts against CTranslate2's.
        batch_changes: some text of the batch is another than alone.
    """

    wall: dict[str, float]
    cpu: dict[str, float]
    mean_rows: float
    encoder: float
    peer: float | None
    different_words: float
    batch_changes: bool


def measure(
    voices: Sequence[np.ndarray], peer: Callable[[str, int], float] | None = None
) -> Findings:
    """Times the engines.

    Args:
        voices: excerpts (n,) at 16 kHz.
        peer: the peer's seconds for a file of float32 samples and a number of beams.
    """
    seconds = sum(map(len, voices)) / RATE
    beams = RecognitionSettings().beam_size
    with tempfile.TemporaryDirectory() as temporary:
        directory = converted_checkpoint(Path(temporary))
        options = EngineOptions(threads=THREADS, beam_size=beams)
        ctranslate = open_recognizer(packaged_model(), options)
        vocabulary = Vocabulary(directory / "tokenizer.json")
        backend = TorchBackend(
            directory,
            vocabulary,
            device="cpu",
            storage="auto",
            threads=THREADS,
            lanes=LANES,
            beams=beams,
        )
        batching = WhisperRecognizer(backend, vocabulary, beam_size=beams)
        clock = _Clock(seconds)
        peers, mean_rows = [], []
        for _ in range(REPEATS):
            clock.time("ctranslate", lambda: [_text(ctranslate, voice) for voice in voices])
            clock.time("torch", lambda: [_text(batching, voice) for voice in voices])
            steps, rows = backend.engine.steps, backend.engine.row_steps
            clock.time("batch", lambda: _at_once(batching, voices))
            steps, rows = backend.engine.steps - steps, backend.engine.row_steps - rows
            mean_rows.append(rows / steps)
            if peer is not None:
                peers.append(_peer_seconds(peer, voices, beams) / seconds)
        batching.close()
        return Findings(
            wall=clock.medians(0),
            cpu=clock.medians(1),
            mean_rows=statistics.median(mean_rows),
            encoder=_encoder(directory, voices) / seconds,
            peer=statistics.median(peers) if peers else None,
            different_words=jiwer.wer(
                [text.lower() for text in clock.texts["ctranslate"]],
                [text.lower() for text in clock.texts["torch"]],
            ),
            batch_changes=clock.texts["batch"] != clock.texts["torch"],
        )


class _Clock:
    """Wall and processor seconds of named work to a second of audio, and the texts of it."""

    def __init__(self, audio_seconds: float) -> None:
        self.texts: dict[str, list[str]] = {}
        self._audio_seconds = audio_seconds
        self._spent: dict[str, list[tuple[float, float]]] = {}

    def time(self, name: str, work: Callable[[], list[str]]) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.texts[name] = work()
        spent = time.perf_counter() - wall, time.process_time() - cpu
        self._spent.setdefault(name, []).append(spent)

    def medians(self, which: int) -> dict[str, float]:
        return {
            name: statistics.median(pair[which] for pair in pairs) / self._audio_seconds
            for name, pairs in self._spent.items()
        }


def judge(report: Report, found: Findings) -> None:
    """The torch engine's bars."""
    report.add("torch_whisper_real_time_factor", found.wall["torch"], asdict(found))
    report.add("torch_whisper_changed_in_batch", float(found.batch_changes))
    report.add("torch_whisper_words_off_ctranslate", found.different_words)
    if found.peer is not None:
        report.add("torch_whisper_batch_over_peer", found.wall["batch"] / found.peer)


def _text(recognizer: WhisperRecognizer, voice: np.ndarray) -> str:
    return recognizer.transcribe(voice, DecodeOptions()).text


def _at_once(recognizer: WhisperRecognizer, voices: Sequence[np.ndarray]) -> list[str]:
    with ThreadPoolExecutor(LANES) as pool:
        return list(pool.map(lambda voice: _text(recognizer, voice), voices))


def _peer_seconds(
    peer: Callable[[str, int], float], voices: Sequence[np.ndarray], beams: int
) -> float:
    spent = 0.0
    with tempfile.NamedTemporaryFile(suffix=".f32") as file:
        for voice in voices:
            voice.astype(np.float32).tofile(file.name)
            spent += peer(file.name, beams)
    return spent


def _encoder(directory: Path, voices: Sequence[np.ndarray]) -> float:
    """Seconds of the encoder over windows of the voices' length."""
    model = WhisperModel(directory, device="cpu", storage="auto", threads=THREADS, rows=1, places=1)
    log_mel = LogMel(model.shape.mel_bands)
    features = [torch.from_numpy(log_mel(voice, len(voice) // 320 * 2 + 100)) for voice in voices]
    costs = []
    with torch.inference_mode():
        for _ in range(REPEATS):
            began = time.perf_counter()
            for one in features:
                model.encoder(one)
            costs.append(time.perf_counter() - began)
    return statistics.median(costs)
