"""An end-of-turn model of the smart-turn layout on onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from antiphon_core.errors import FailedPrecondition
from numpy.typing import NDArray

from antiphon_vocoder.onnx_session import ModelUnloadable, open_session
from antiphon_vocoder.recognition.turns.judge import HEARD_SECONDS
from antiphon_vocoder.recognition.whisper.features import FRAME_RATE, RATE, LogMel

_BANDS = 80
_FRAMES = HEARD_SECONDS * FRAME_RATE
_SAMPLES = HEARD_SECONDS * RATE
_VARIANCE_FLOOR = 1e-7
_FIELD = "recognition.turn_model"


class SmartTurnJudge:
    """Hears the last 8 s: padded with silence on the left, brought to mean 0 and variance 1 over
    the padded window, as whisper's log-mel features (1, 80, 800); the answer is one probability.

    The layout is that of the smart-turn v3 models (BSD-2-Clause), whose encoder is whisper's.

    Args:
        path: the ONNX file.

    Raises:
        FailedPrecondition: it does not load, or has another layout.
    """

    name = "smart_turn"
    needs_text = False

    def __init__(self, path: Path) -> None:
        try:
            self._session = open_session(path)
        except ModelUnloadable as error:
            raise FailedPrecondition(f"{path} does not load: {error}", field=_FIELD) from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or list(inputs[0].shape[1:]) != [_BANDS, _FRAMES]:
            found = ", ".join(f"{one.name} {one.shape}" for one in inputs)
            raise FailedPrecondition(
                f"{path.name} takes {found}; an end-of-turn model takes one input of shape "
                f"(batch, {_BANDS}, {_FRAMES})",
                field=_FIELD,
            )
        self._input = inputs[0].name
        self._log_mel = LogMel(_BANDS)
        silence = np.zeros(RATE, np.float32)
        try:
            first = self.probability(silence, None, "")
        except Exception as error:  # as above
            raise FailedPrecondition(f"{path.name} does not run: {error}", field=_FIELD) from error
        if not 0 <= first <= 1:
            raise FailedPrecondition(
                f"{path.name} answers {first:g}, which is no probability: export the sigmoid too",
                field=_FIELD,
            )

    def probability(self, audio: NDArray[np.float32], text: str | None, language: str) -> float:
        """See PauseJudge."""
        outputs = self._session.run(None, {self._input: self.features(audio)[None]})
        return float(np.asarray(outputs[0]).reshape(-1)[0])

    def features(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """(80, 800) of the last 8 s of audio (n,) at 16 kHz."""
        heard = audio[-_SAMPLES:]
        window = np.zeros(_SAMPLES, np.float32)
        window[_SAMPLES - len(heard) :] = heard
        window -= window.mean()
        window /= np.sqrt(window.var() + _VARIANCE_FLOOR)
        return self._log_mel(window, _FRAMES)
