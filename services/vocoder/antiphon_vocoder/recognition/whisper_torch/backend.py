"""Whisper in the transformers layout as the recogniser's engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from antiphon_kernels import runtime
from antiphon_nn.config_reader import ConfigReader
from numpy.typing import NDArray

from antiphon_vocoder.recognition.whisper.backend import (
    SAMPLES_WHEN_HOT,
    Alignment,
    Attempt,
    Generated,
    IsCancelled,
)
from antiphon_vocoder.recognition.whisper.features import FFT, FRAME_RATE, HOP, RATE, LogMel
from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary
from antiphon_vocoder.recognition.whisper.window import FRAMES, SECONDS, Window
from antiphon_vocoder.recognition.whisper_torch.alignment import token_positions
from antiphon_vocoder.recognition.whisper_torch.decoder import RowInput
from antiphon_vocoder.recognition.whisper_torch.device_log_mel import DeviceLogMel
from antiphon_vocoder.recognition.whisper_torch.engine import Engine
from antiphon_vocoder.recognition.whisper_torch.memory import PAGE
from antiphon_vocoder.recognition.whisper_torch.model import WhisperModel
from antiphon_vocoder.recognition.whisper_torch.rules import read_rules
from antiphon_vocoder.recognition.whisper_torch.weights import Storage

_POSITION_FRAMES = 2
_PATIENCE_SECONDS = 0.05
"""How often a caller that waits for a place looks whether it was cancelled."""


class TorchBackend:
    """A loaded checkpoint and its engine.

    Args:
        directory: config.json, safetensors, tokenizer.json, generation_config.json and
            preprocessor_config.json as transformers writes them.
        vocabulary: the tokenizer.
        device: cpu, cuda or cuda:N.
        storage: how weights are kept.
        threads: of a processor; 0 takes torch's number.
        lanes: excerpts that are worked on at once.
        beams: most beams of an attempt.

    Raises:
        OSError, ValueError: a file is missing, damaged, or describes what is not served.
    """

    def __init__(
        self,
        directory: Path,
        vocabulary: Vocabulary,
        *,
        device: str,
        storage: Storage,
        threads: int,
        lanes: int,
        beams: int,
    ) -> None:
        threads = threads or torch.get_num_threads()
        if torch.device(device).type == "cpu":
            runtime.set_threads(threads)
        rows = lanes * max(beams, SAMPLES_WHEN_HOT) + 1
        self._model = WhisperModel(
            directory, device=device, storage=storage, threads=threads, rows=rows, places=lanes
        )
        shape = self._model.shape
        _check_features(directory, shape.mel_bands)
        self._rules = read_rules(
            directory,
            vocabulary,
            size=shape.vocabulary,
            layers=shape.decoder_layers,
            heads=shape.decoder_heads,
        )
        self._languages = {vocabulary.language_token(code): code for code in vocabulary.languages}
        self.is_multilingual = self._rules.is_multilingual
        self.lanes = lanes
        where = self._model.device
        self._log_mel = (
            LogMel(shape.mel_bands) if where.type == "cpu" else DeviceLogMel(shape.mel_bands, where)
        )
        self._window = Window(step_frames=PAGE * _POSITION_FRAMES)
        self._places = list(range(lanes))
        self._changed = threading.Condition()
        with torch.inference_mode():
            silence = torch.as_tensor(self._log_mel(_NOTHING, FRAMES))
            self._model.decoder.place_silence(self._model.encode(silence))
        self.engine = Engine(self._model, self._rules, rows, beams)

    @property
    def graph_misses(self) -> int:
        """See Backend."""
        return self.engine.graph_misses

    @contextmanager
    def encode(
        self, audio: NDArray[np.float32], is_cancelled: IsCancelled, *, urgent: bool = False
    ) -> Iterator[_EncodedAudio]:
        """See Backend."""
        features = self._features(audio)
        place = self._take_place(is_cancelled)

        def run() -> torch.Tensor:
            return self._model.decoder.place(place, self._model.encode(features()))

        try:
            table = self.engine.run(
                run,
                is_cancelled,
                urgent=urgent,
            )
            yield _EncodedAudio(self, place, table, len(audio) / RATE, is_cancelled)
        finally:
            with self._changed:
                self._places = sorted([*self._places, place])
                self._changed.notify()

    def raise_failure(self) -> None:
        """See Backend: a CUDA device in an unknown state."""
        if self.engine.failure is not None:
            raise self.engine.failure

    def close(self) -> None:
        """See Backend."""
        self.engine.stop()

    def likeliest_language(self, audio: torch.Tensor) -> str:
        """On the engine's thread: code of the language that the model expects to hear."""
        row = RowInput([self._rules.start], 0, self.engine.task_row, audio)
        decoder = self._model.decoder
        logits = decoder.logits(decoder([row]))[0]
        tokens = list(self._languages)
        return self._languages[tokens[int(logits[tokens].argmax())]]

    def aligned(
        self, audio: torch.Tensor, place: int, frames: int, start: Sequence[int], text: list[int]
    ) -> Alignment:
        """On the engine's thread: places of text tokens in the first frames of the audio."""
        shape, decoder, heads = self._model.shape, self._model.decoder, self._rules.alignment_heads
        # What does not fit ends where the last token that does begins.
        kept = text[: shape.target_positions - len(start) - 2]
        tokens = [*start, self._rules.no_timestamps, *kept, self._rules.end]
        queries = dict.fromkeys({layer for layer, _ in heads}, torch.empty(0))
        states = decoder([RowInput(tokens, 0, self.engine.task_row, audio)], queries)
        positions = max(1, frames // _POSITION_FRAMES)
        scale = (shape.width // shape.decoder_heads) ** -0.5
        scores = [
            queries[layer][:, head] @ self._model.memory.keys(layer, place, positions)[:, head].t()
            for layer, head in heads
        ]
        found = token_positions(torch.stack(scores) * scale, len(start), shape.median_width)
        first = len(start)
        logits = decoder.logits(states[first : first + len(kept)])[:, : self._rules.end]
        chances = logits.softmax(dim=1)[range(len(kept)), kept].tolist()
        missing = len(text) - len(kept)
        return Alignment(found + found[-1:] * missing, chances + [0.0] * missing)

    def _features(self, audio: NDArray[np.float32]) -> Callable[[], torch.Tensor]:
        """Gives the features on the engine's thread. A processor makes them here, beside it."""
        frames = self._window.frames(len(audio))
        if isinstance(self._log_mel, DeviceLogMel):
            return partial(self._log_mel, audio, frames)
        made = torch.from_numpy(self._log_mel(audio, frames))
        return lambda: made

    def _take_place(self, is_cancelled: IsCancelled) -> int:
        with self._changed:
            while not self._places:
                if is_cancelled():
                    raise CancelledError
                self._changed.wait(_PATIENCE_SECONDS)
            return self._places.pop(0)


class _EncodedAudio:
    """See EncodedAudio."""

    def __init__(
        self,
        backend: TorchBackend,
        place: int,
        audio: torch.Tensor,
        seconds: float,
        is_cancelled: IsCancelled,
    ) -> None:
        self._backend, self._engine = backend, backend.engine
        self._place, self._audio = place, audio
        self._frames = max(1, round(seconds * FRAME_RATE))
        self._is_cancelled = is_cancelled

    def detect_language(self) -> str:
        return self._engine.run(
            lambda: self._backend.likeliest_language(self._audio), self._is_cancelled, urgent=True
        )

    def generate(self, attempt: Attempt) -> Generated:
        return self._engine.generate(attempt, self._audio, self._is_cancelled)

    def align(self, start: Sequence[int], tokens: Sequence[int]) -> Alignment:
        def run() -> Alignment:
            return self._backend.aligned(
                self._audio, self._place, self._frames, start, list(tokens)
            )

        return self._engine.run(run, self._is_cancelled, urgent=True)


_NOTHING = np.zeros(0, np.float32)

_FEATURES = {
    "sampling_rate": RATE,
    "hop_length": HOP,
    "n_fft": FFT,
    "chunk_length": SECONDS,
    "dither": 0.0,
    "padding_value": 0.0,
}


def _check_features(directory: Path, bands: int) -> None:
    """Refuses a front end that is not the one of ``LogMel``."""
    config = ConfigReader(
        json.loads((directory / "preprocessor_config.json").read_text()), "preprocessor_config"
    )
    for key, value in (_FEATURES | {"feature_size": bands}).items():
        config.choice(key, (value,), value)
    config.choice("do_normalize", (False,), False)
