"""Whisper on CTranslate2: quantised products on the processor, one excerpt at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path

import ctranslate2
import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.whisper.backend import (
    SAMPLES_WHEN_HOT,
    Alignment,
    Attempt,
    Generated,
    IsCancelled,
)
from antiphon_vocoder.recognition.whisper.encoder import Encoder
from antiphon_vocoder.recognition.whisper.features import FRAME_RATE, RATE
from antiphon_vocoder.recognition.whisper.window import Window

_SEED = 20
_POSITION_FRAMES = 2


class CTranslateBackend:
    """A loaded model; calls of several threads take turns.

    Args:
        directory: a CTranslate2 whisper directory.
        compute_type: CTranslate2's name of the arithmetic.
        threads: of one pass; 0 lets CTranslate2 choose.

    Raises:
        RuntimeError, ValueError: what is there does not load.
    """

    lanes = 1
    graph_misses = 0

    def __init__(self, directory: Path, *, compute_type: str, threads: int) -> None:
        self._model = ctranslate2.models.Whisper(
            str(directory),
            device="cpu",
            compute_type=compute_type,
            intra_threads=threads,
            inter_threads=1,
        )
        ctranslate2.set_random_seed(_SEED)
        self.is_multilingual = self._model.is_multilingual
        self._encoder = Encoder(self._model, Window())

    @contextmanager
    def encode(
        self, audio: NDArray[np.float32], is_cancelled: IsCancelled, *, urgent: bool = False
    ) -> Iterator[_EncodedAudio]:
        """See Backend; the queue before it has the order, since nothing else waits."""
        if is_cancelled():
            raise CancelledError
        encoded = self._encoder.encode(audio)
        yield _EncodedAudio(self._model, encoded, len(audio) / RATE, is_cancelled)

    def raise_failure(self) -> None:
        """A failed call says nothing about the next one."""

    def close(self) -> None:
        """Nothing runs between calls."""


class _EncodedAudio:
    """See EncodedAudio; a decoding that runs is not interrupted."""

    def __init__(
        self,
        model: ctranslate2.models.Whisper,
        encoded: ctranslate2.StorageView,
        seconds: float,
        is_cancelled: IsCancelled,
    ) -> None:
        self._model = model
        self._encoded = encoded
        self._seconds = seconds
        self._is_cancelled = is_cancelled

    def detect_language(self) -> str:
        token, _ = self._model.detect_language(self._encoded)[0][0]
        return token.strip("<|>")

    def generate(self, attempt: Attempt) -> Generated:
        if self._is_cancelled():
            raise CancelledError
        hot = attempt.temperature > 0
        result = self._model.generate(
            self._encoded,
            [list(attempt.prompt)],
            beam_size=1 if hot else attempt.beams,
            num_hypotheses=SAMPLES_WHEN_HOT if hot else 1,
            sampling_topk=0 if hot else 1,
            sampling_temperature=attempt.temperature if hot else 1.0,
            max_length=attempt.max_length,
            return_scores=True,
            return_no_speech_prob=True,
        )[0]
        tokens = list(result.sequences_ids[0])
        # CTranslate2's score is the mean over the tokens; whisper's rules count the end too.
        logprob = result.scores[0] * len(tokens) / (len(tokens) + 1)
        return Generated(tokens, logprob, result.no_speech_prob)

    def align(self, start: Sequence[int], tokens: Sequence[int]) -> Alignment:
        frames = max(1, round(self._seconds * FRAME_RATE))
        found = self._model.align(self._encoded, list(start), [list(tokens)], frames)[0]
        positions = [frames // _POSITION_FRAMES] * (len(tokens) + 1)
        for token, position in reversed(found.alignments):
            if token < len(positions):
                positions[token] = position
        return Alignment(positions, list(found.text_token_probs))
