"""The two sides of :mod:`bench.gpu_whisper`: the recogniser's batch engine, and transformers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from antiphon_vocoder.recognition.messages import DecodeOptions
from antiphon_vocoder.recognition.whisper.backend import Attempt, never
from antiphon_vocoder.recognition.whisper.features import RATE
from antiphon_vocoder.recognition.whisper.recognizer import WhisperRecognizer
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary
from antiphon_vocoder.recognition.whisper.window import FRAMES
from antiphon_vocoder.recognition.whisper_torch.backend import TorchBackend
from antiphon_vocoder.recognition.whisper_torch.weights import Storage, WhisperShape
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.utils import logging

from bench.whisper_checkpoints import END, NO_TIMESTAMPS, START

Clips = Sequence[NDArray[np.float32]]
T = TypeVar("T")

PROMPT = [START, NO_TIMESTAMPS]
SHORT_TOKENS = 8
"""Of the peer's short texts."""
ENCODINGS = 10
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Speed:
    """What one side takes.

    Attributes:
        audio: seconds of audio a second.
        features: ms of 30 s of audio.
        encoder: likewise.
        step: ms of a step of the decoder.
        rows: texts in a step, on average.
    """

    audio: float
    features: float
    encoder: float
    step: float
    rows: float


@dataclass(frozen=True)
class Load:
    """What both sides hear, and how long it may get.

    Attributes:
        clips: (n,) at 16 kHz.
        lanes: of them at once.
        new_tokens: most tokens of a text.
        is_fixed: every text has so many.
        repeats: after a first one; the median counts.
    """

    clips: Clips
    lanes: int
    new_tokens: int
    is_fixed: bool
    repeats: int

    @property
    def least(self) -> int:
        """Tokens of the shortest text that is allowed."""
        return self.new_tokens if self.is_fixed else 0

    @property
    def attempt(self) -> Attempt:
        """A greedy text."""
        return Attempt(PROMPT, 0.0, 1, len(PROMPT) + self.new_tokens)

    def speed(self, seconds: float) -> float:
        """Seconds of audio a second, of all clips in so many seconds."""
        return sum(map(len, self.clips)) / RATE / seconds

    def timed(self, run: Callable[[], T]) -> tuple[T, float]:
        """The last result, and the median seconds of a call until the device is idle."""
        made, times = run(), []
        for _ in range(self.repeats):
            wait()
            began = time.perf_counter()
            made = run()
            wait()
            times.append(time.perf_counter() - began)
        return made, statistics.median(times)


class Ours:
    """The recogniser over the batch engine, without beams and fallback."""

    def __init__(self, directory: Path, device: str, precision: Storage, lanes: int) -> None:
        self.vocabulary = Vocabulary(directory / "tokenizer.json")
        self.backend = TorchBackend(
            directory,
            self.vocabulary,
            device=device,
            storage=precision,
            threads=0,
            lanes=lanes,
            beams=1,
        )
        self._recognizer = WhisperRecognizer(self.backend, self.vocabulary, beam_size=1)

    @property
    def shape(self) -> WhisperShape:
        """The model's sizes."""
        return self.backend._model.shape

    def measure(self, load: Load) -> tuple[Speed, list[str]]:
        """Its speed, and the texts."""
        texts, seconds = load.timed(partial(self._texts, load))
        made_features, made = load.timed(partial(self.backend._log_mel, load.clips[0], FRAMES))
        features = torch.as_tensor(made_features)
        step, rows = self._step(load)
        speed = Speed(
            audio=load.speed(seconds),
            features=made * 1e3,
            encoder=self._encoder(load, features),
            step=step,
            rows=rows,
        )
        return speed, texts

    def _texts(self, load: Load) -> list[str]:
        def text(clip: NDArray[np.float32]) -> str:
            if not load.is_fixed:
                return self._recognizer.transcribe(clip, DecodeOptions(temperature=0.0)).text
            with self.backend.encode(clip, never) as encoded:
                return self.vocabulary.decode(encoded.generate(load.attempt).tokens)

        with ThreadPoolExecutor(load.lanes) as pool:
            return list(pool.map(text, load.clips))

    def _encoder(self, load: Load, features: torch.Tensor) -> float:
        """ms of a window behind others."""

        def several() -> None:
            for _ in range(ENCODINGS):
                self.backend._model.encode(features)

        _, seconds = load.timed(partial(self.backend.engine.run, several, never))
        return seconds / ENCODINGS * 1e3

    def _step(self, load: Load) -> tuple[float, float]:
        """ms of a step once all is encoded, and the rows that it has on average."""
        engine = self.backend.engine
        with ExitStack() as stack:
            heard = [
                stack.enter_context(self.backend.encode(clip, never))
                for clip in load.clips[: load.lanes]
            ]

            def decode() -> tuple[int, int]:
                steps, rows = engine.steps, engine.row_steps
                with ThreadPoolExecutor(load.lanes) as pool:
                    list(pool.map(lambda one: one.generate(load.attempt), heard))
                return engine.steps - steps, engine.row_steps - rows

            (steps, rows), seconds = load.timed(decode)
        return seconds / steps * 1e3, rows / steps


class TransformersWhisper:
    """A checkpoint on a device.

    Args:
        directory: as transformers writes it.
        device: cpu, cuda or cuda:N.
        precision: fp32, fp16 or bf16.
    """

    def __init__(self, directory: Path, device: str, precision: str) -> None:
        # A warning for each call, and bars of progress, would bury the figures.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self._device, self._dtype = device, _DTYPES[precision]
        model: Any = WhisperForConditionalGeneration.from_pretrained(
            directory, dtype=self._dtype, attn_implementation="sdpa"
        )
        self._model = model.eval().to(torch.device(device))
        self._extractor = WhisperFeatureExtractor.from_pretrained(directory)

    def features(self, clips: Clips) -> torch.Tensor:
        """Clips (n,) at 16 kHz to (B, bands, 3000) on the device, made there."""
        made = self._extractor(
            list(clips), sampling_rate=RATE, return_tensors="pt", device=self._device
        )
        return made["input_features"].to(self._device, self._dtype)

    @torch.inference_mode()
    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """features (B, bands, 3000) to (B, 1500, width)."""
        return self._model.get_encoder()(features).last_hidden_state

    @torch.inference_mode()
    def generate(self, features: torch.Tensor, most: int, least: int = 0) -> list[list[int]]:
        """Tokens of each text without prompt, end and times: at most ``most``, at least ``least``
        of them."""
        tokens = self._model.generate(
            features, max_new_tokens=most, min_new_tokens=least, do_sample=False, num_beams=1
        )
        assert isinstance(tokens, torch.Tensor)
        return [row[: row.index(END)] if END in row else row for row in tokens.tolist()]

    def measure(self, load: Load, vocabulary: Vocabulary) -> tuple[Speed, list[str]]:
        """Its speed in batches of ``load.lanes`` clips, and the texts."""
        lanes, most = load.lanes, load.new_tokens
        batches = [load.clips[at : at + lanes] for at in range(0, len(load.clips), lanes)]

        def texts() -> list[str]:
            return [
                vocabulary.decode(tokens)
                for batch in batches
                for tokens in self.generate(self.features(batch), most, load.least)
            ]

        heard, seconds = load.timed(texts)
        features, made = load.timed(partial(self.features, batches[0]))
        _, encoded = load.timed(partial(self.encode, features))
        short = min(SHORT_TOKENS, most // 2)
        _, longer = load.timed(partial(self.generate, features, most, most))
        _, shorter = load.timed(partial(self.generate, features, short, short))
        rows = len(batches[0])
        step = (longer - shorter) / (most - short)
        speed = Speed(
            audio=load.speed(seconds),
            features=made / rows * 1e3,
            encoder=encoded / rows * 1e3,
            step=step * 1e3,
            rows=rows,
        )
        return speed, heard


def wait() -> None:
    """Until the device is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
