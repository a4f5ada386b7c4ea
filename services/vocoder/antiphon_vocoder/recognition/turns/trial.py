"""The trial of a pause: waits for its text, then for the judge."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from antiphon_core import metrics
from antiphon_core.logs import get_logger

from antiphon_vocoder.recognition.passes import PassQueue
from antiphon_vocoder.recognition.segmenter import Candidate
from antiphon_vocoder.recognition.turns.judge import PauseJudge

TEXT_SECONDS = 1.0
"""A judge that wants the text waits so long for it: the end of a turn must not wait for a
recogniser that is overloaded."""
_UNDECIDED = 0.0

log = get_logger("recognition.turns")


@dataclass
class TrialTotals:
    """Since the start of the process."""

    judged: int = 0
    refused: int = 0
    unheard: int = 0
    forced: int = 0
    seconds: float = 0.0


class Court:
    """Judges the pauses of all streams on one thread, so that no stream's detection waits.

    Args:
        judge: the judge.
        passes: where texts come from.
    """

    def __init__(self, judge: PauseJudge, passes: PassQueue) -> None:
        self.judge = judge
        self.passes = passes
        self.totals = TrialTotals()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="turn-judge")

    def submit(self, candidate: Candidate, text: str | None, language: str) -> Future[float]:
        """The judge's answer, made on the court's thread."""
        return self._thread.submit(self.judge.probability, candidate.audio, text, language)

    def stop(self) -> None:
        """Ends the thread; what was not begun is not judged."""
        self._thread.shutdown(cancel_futures=True)


class Trial:
    """One pause of one stream, asked about until there is an answer.

    Args:
        court: the judge.
        number: the stream's.
        candidate: the pause; where the judge wants its text, a pass over it must be under way.
    """

    def __init__(self, court: Court, number: int, candidate: Candidate) -> None:
        self._court = court
        self._number = number
        self._candidate = candidate
        self._began = time.monotonic()
        self._answer: Future[float] | None = None
        if not court.judge.needs_text:
            self._answer = court.submit(candidate, None, "")

    def outcome(self) -> float | None:
        """The probability that the turn is over; None while that is open."""
        if self._answer is None:
            self._answer = self._ask()
        if self._answer is None or not self._answer.done():
            return None
        totals = self._court.totals
        totals.judged += 1
        totals.seconds += time.monotonic() - self._began
        try:
            return self._answer.result()
        except Exception as error:  # the longest silence still ends the turn
            log.warning("pause_not_judged", judge=self._court.judge.name, problem=repr(error))
            metrics.fallback("turn_judge", "judge_failed")
            return _UNDECIDED

    def _ask(self) -> Future[float] | None:
        done, transcript = self._court.passes.heard(self._number, self._candidate)
        if transcript is not None:
            return self._court.submit(self._candidate, transcript.text, transcript.language)
        if not done and time.monotonic() - self._began < TEXT_SECONDS:
            return None
        self._court.totals.unheard += 1
        return self._court.submit(self._candidate, None, "")
