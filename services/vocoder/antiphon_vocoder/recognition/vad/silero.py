"""The silero voice-activity model on onnxruntime, batched over streams."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.onnx_session import ModelUnloadable, open_session
from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW, DetectorState

_PACKAGE = "silero_vad"
_FILE = "silero_vad_op18_ifless.onnx"
_CONTEXT = 64
_WIDTH = 128


class DetectorUnavailable(Exception):
    """The model's file is missing or does not load."""


class _SileroState(DetectorState):
    """The last samples (64,) and the recurrent state (2, 1, 128) of one stream."""

    def __init__(self) -> None:
        self.context = np.zeros(_CONTEXT, np.float32)
        self.recurrent = np.zeros((2, 1, _WIDTH), np.float32)


class SileroDetector:
    """512-sample windows at 16 kHz, each heard behind the 64 samples before it.

    One thread: a batch of 32 takes about 2 ms, and a second thread would take time from the
    recogniser.

    Args:
        path: an ONNX file; None takes the one of the silero-vad package.

    Raises:
        DetectorUnavailable: naming the file or the package.
    """

    name = "silero"

    def __init__(self, path: Path | None = None) -> None:
        model = path if path is not None else _packaged_model()
        try:
            self._session = open_session(model)
        except ModelUnloadable as error:
            raise DetectorUnavailable(f"{model.name}: {error}") from error
        self._rate = np.array(RATE, dtype=np.int64)

    def new_state(self) -> DetectorState:
        """See Detector."""
        return _SileroState()

    def score(
        self, windows: NDArray[np.float32], states: Sequence[DetectorState]
    ) -> NDArray[np.float32]:
        """See Detector."""
        rows = [state for state in states if isinstance(state, _SileroState)]
        if len(rows) != len(windows) or windows.shape[1:] != (WINDOW,):
            raise ValueError(f"{len(rows)} silero states for windows of shape {windows.shape}")
        heard = np.concatenate((np.stack([row.context for row in rows]), windows), axis=1)
        recurrent = np.concatenate([row.recurrent for row in rows], axis=1)
        probabilities, after = self._session.run(
            None, {"input": heard, "sr": self._rate, "state": recurrent}
        )
        after = np.asarray(after)
        for index, row in enumerate(rows):
            row.context = heard[index, -_CONTEXT:].copy()
            row.recurrent = after[:, index : index + 1].copy()
        return np.asarray(probabilities).reshape(-1)


def _packaged_model() -> Path:
    # find_spec does not import the package, which would bring in torch.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DetectorUnavailable(
            "the package silero-vad is not installed; `make setup` installs it"
        )
    path = Path(spec.submodule_search_locations[0]) / "data" / _FILE
    if not path.is_file():
        raise DetectorUnavailable(f"the package silero-vad has no {_FILE}")
    return path
