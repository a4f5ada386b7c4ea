"""Whether a pause is the end of a turn."""

from __future__ import annotations

from pathlib import Path

from antiphon_vocoder.recognition.turns.judge import PauseJudge
from antiphon_vocoder.recognition.turns.phrase import PhraseJudge
from antiphon_vocoder.recognition.turns.smart_turn import SmartTurnJudge

__all__ = ["PauseJudge", "load_judge"]


def load_judge(model: Path | None) -> PauseJudge:
    """The judge of a process: the model's, or without one that of wording and voice.

    Raises:
        FailedPrecondition: the model does not load.
    """
    return PhraseJudge() if model is None else SmartTurnJudge(model)
