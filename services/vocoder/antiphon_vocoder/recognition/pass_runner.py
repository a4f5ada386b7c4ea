"""One pass: from audio to text and, where asked for, to the voices of its segments."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.recognition.messages import DecodeOptions
from antiphon_vocoder.recognition.pass_records import PassTotals, Recognizer
from antiphon_vocoder.recognition.speakers.model import SpeakerModel
from antiphon_vocoder.recognition.vad.detector import RATE
from antiphon_vocoder.recognition.whisper.backend import IsCancelled
from antiphon_vocoder.recognition.whisper.transcript import Effort, Transcript


class PassRunner:
    """Runs and counts passes; ``run`` may be called from several threads.

    Args:
        recognizer: makes the text.
        speakers: embeds voices; None for a queue whose streams never ask who speaks.
        totals: where passes are counted.
    """

    def __init__(
        self, recognizer: Recognizer, speakers: SpeakerModel | None, totals: PassTotals
    ) -> None:
        self._recognizer = recognizer
        self._speakers = speakers
        self._totals = totals
        self._counting = threading.Lock()

    def run(
        self,
        audio: NDArray[np.float32],
        options: DecodeOptions,
        *,
        timestamps: bool = False,
        effort: Effort = Effort.FULL,
        is_cancelled: IsCancelled,
        voices: bool = False,
    ) -> Transcript:
        """A pass over audio (n,); arguments and errors as WhisperRecognizer.transcribe.

        Args:
            voices: embed the segments' voices too, where the result may become a final.
        """
        began = time.perf_counter()
        transcript = self._recognizer.transcribe(
            audio, options, timestamps=timestamps, effort=effort, is_cancelled=is_cancelled
        )
        with self._counting:
            self._totals.passes += 1
            self._totals.pass_seconds += time.perf_counter() - began
            self._totals.audio_seconds += len(audio) / RATE
        if not voices or self._speakers is None or not transcript.is_settled:
            return transcript
        return replace(transcript, voices=self._speakers.voices(audio, transcript.segments))
