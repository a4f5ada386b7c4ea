"""How much of whisper's 30 s window is encoded for an excerpt."""

from __future__ import annotations

import math
from dataclasses import dataclass

from antiphon_vocoder.recognition.whisper.features import FRAME_RATE, RATE

SECONDS = 30
FRAMES = SECONDS * FRAME_RATE


@dataclass(frozen=True)
class Window:
    """Speech and a margin of silence behind it; what follows is an encoding of pure silence.

    Whisper pads every input to 30 s of silence, and its decoder relies on that silence to stop:
    a short window alone makes it repeat the text. So the positions behind the short window are
    taken from an encoding of pure silence, made once. The encoder's cost then follows the length
    of the speech while the decoder sees the 1500 positions that it expects.

    Attributes:
        margin_seconds: silence that is encoded with the speech.
        shortest_seconds: the shortest encoded window.
        step_frames: windows are multiples of so many feature frames.
    """

    margin_seconds: float = 1.0
    shortest_seconds: float = 2.0
    step_frames: int = FRAME_RATE // 2

    def frames(self, samples: int) -> int:
        """Feature frames that are encoded for so many samples at 16 kHz."""
        wanted = max(samples / RATE + self.margin_seconds, self.shortest_seconds)
        steps = math.ceil(wanted * FRAME_RATE / self.step_frames)
        return min(steps * self.step_frames, FRAMES)
