"""Voice-activity detectors and the hysteresis that turns their probabilities into speech."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon_core.errors import InvalidArgument

from antiphon_vocoder.recognition.messages import DETECTORS
from antiphon_vocoder.recognition.vad.detector import RATE, WINDOW, Detector, DetectorState
from antiphon_vocoder.recognition.vad.energy import EnergyDetector

if TYPE_CHECKING:
    from antiphon_vocoder.recognition.vad.silero import SileroDetector

__all__ = ["RATE", "WINDOW", "Detector", "DetectorSet", "DetectorState"]


class DetectorSet:
    """The detectors of one process, each loaded once at its first use."""

    def __init__(self) -> None:
        self._energy = EnergyDetector()
        self._silero: SileroDetector | None = None
        self._problem = ""

    def resolve(self, name: str) -> tuple[Detector, bool]:
        """The detector of a name, and whether it stands in for the default one.

        Raises:
            InvalidArgument: unknown name, or a detector named explicitly that cannot load.
        """
        if name not in DETECTORS:
            raise InvalidArgument(
                f"unknown detector {name!r}", field="turn_detection.detector", allowed=DETECTORS
            )
        if name == "energy":
            return self._energy, False
        silero = self._load_silero()
        if silero is not None:
            return silero, False
        if name == "silero":
            raise InvalidArgument(
                f"the detector silero cannot load: {self._problem}",
                reason="UNSUPPORTED_OPTION",
                field="turn_detection.detector",
                allowed=("auto", "energy"),
            )
        return self._energy, True

    def _load_silero(self) -> SileroDetector | None:
        # Here, so that the service's front, which makes voices, loads onnxruntime only then.
        from antiphon_vocoder.recognition.vad.silero import DetectorUnavailable, SileroDetector

        if self._silero is None and not self._problem:
            try:
                self._silero = SileroDetector()
            except DetectorUnavailable as error:
                self._problem = str(error)
        return self._silero
