"""A configured speaker model: an ONNX export of 3D-Speaker (CAM++, ERes2Net) or WeSpeaker.

The layout is the one that sherpa-onnx writes: one input of features (1, frames, 80), one output
(1, D), and metadata that say how the features are made.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import numpy as np
from antiphon_core.errors import FailedPrecondition
from numpy.typing import NDArray

from antiphon_vocoder.onnx_session import ModelUnloadable, open_session
from antiphon_vocoder.recognition.speakers.embedder import RATE, Embedding, VoiceUnheard, unit
from antiphon_vocoder.recognition.speakers.fbank import BANDS, Fbank

FIELD = "recognition.speaker_model"
SAME_VOICE = 0.5
_WESPEAKER = "wespeaker"
_FRAMEWORKS = ("3d-speaker", _WESPEAKER)
_MEAN = "global-mean"
_LEAST_FRAMES = 50


class ExportedEmbedder:
    """See Embedder.

    Args:
        path: the ONNX file.
        same_voice: cosine from which two voices are one; None takes 0.5.

    Raises:
        FailedPrecondition: it does not load or run, or its shapes or metadata are others.
    """

    rise = 0.0

    def __init__(self, path: Path, same_voice: float | None = None) -> None:
        self.name = path.name
        self.same_voice = SAME_VOICE if same_voice is None else same_voice
        try:
            self._session = open_session(path, lengths_vary=True)
        except ModelUnloadable as error:
            raise FailedPrecondition(f"{path} does not load: {error}", field=FIELD) from error
        self._check_shapes()
        metadata = self._session.get_modelmeta().custom_metadata_map
        self._fbank = self._front_end(metadata)
        self._try_out(metadata.get("output_dim", ""))

    def embed(self, audio: NDArray[np.float32]) -> Embedding:
        """See Embedder."""
        features = self._fbank(audio)
        if len(features) < _LEAST_FRAMES:
            raise VoiceUnheard(f"{len(features)} frames of features")
        return unit(self._run(features))

    def _run(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs = self._session.run(None, {self._session.get_inputs()[0].name: features[None]})
        return np.asarray(outputs[0])[0]

    def _check_shapes(self) -> None:
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        shapes = [list(one.shape) for one in inputs]
        if len(shapes) != 1 or len(shapes[0]) != 3 or shapes[0][2] not in (BANDS, None):
            found = ", ".join(f"{one.name} {one.shape}" for one in inputs)
            self._refuse(f"takes {found}; a speaker model takes one input (1, frames, {BANDS})")
        if isinstance(shapes[0][1], int):
            self._refuse(f"takes exactly {shapes[0][1]} frames; their number must be free")
        if len(outputs[0].shape) != 2:
            self._refuse(f"answers {outputs[0].name} {outputs[0].shape}, expected (1, D)")

    def _front_end(self, metadata: dict[str, str]) -> Fbank:
        framework = metadata.get("framework", "")
        if framework not in _FRAMEWORKS:
            self._refuse(f"has metadata framework {framework!r}", _FRAMEWORKS)
        rate = metadata.get("sample_rate", "")
        if rate != str(RATE):
            self._refuse(f"has metadata sample_rate {rate!r}", (str(RATE),))
        normalized = metadata.get("normalize_samples", "")
        if normalized not in ("0", "1"):
            self._refuse(f"has metadata normalize_samples {normalized!r}", ("0", "1"))
        # WeSpeaker's exports leave it out, though its own inference always removes the mean.
        default = _MEAN if framework == _WESPEAKER else ""
        mean = metadata.get("feature_normalize_type", "") or default
        if mean not in ("", _MEAN):
            self._refuse(f"has metadata feature_normalize_type {mean!r}", ("", _MEAN))
        return Fbank(
            window="hamming" if framework == _WESPEAKER else "povey",
            normalized=normalized == "1",
            remove_mean=mean == _MEAN,
        )

    def _try_out(self, dimension: str) -> None:
        noise = np.random.default_rng(0).standard_normal((2 * _LEAST_FRAMES, BANDS))
        try:
            vector = self._run(noise.astype(np.float32))
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            raise FailedPrecondition(f"{self.name} does not run: {error}", field=FIELD) from error
        if not np.isfinite(vector).all():
            self._refuse("answers with numbers that are not finite")
        if dimension and dimension != str(len(vector)):
            self._refuse(f"has metadata output_dim {dimension!r} and answers {len(vector)} numbers")

    def _refuse(self, problem: str, allowed: tuple[str, ...] | None = None) -> NoReturn:
        expected = f"; allowed: {', '.join(map(repr, allowed))}" if allowed else ""
        raise FailedPrecondition(f"{self.name} {problem}{expected}", field=FIELD)
