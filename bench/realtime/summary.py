"""From the turns of a run to its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from antiphon_cli.talk.speech import word_error_rate

from bench.load.summary import spread
from bench.realtime.turns import Reply, Turn

LONGEST_GAP_S = 0.1
"""A reply with a longer silence inside is not continuous."""
OUTCOMES = ("completed", "interrupted", "failed", "lost")
LEGS: dict[str, Callable[[Turn, Reply], tuple[float | None, float | None]]] = {
    "stopped": lambda turn, reply: (turn.speech_end, turn.stopped),
    "created": lambda turn, reply: (turn.stopped, reply.created),
    "first_text": lambda turn, reply: (reply.created, reply.first_text),
    "first_audio": lambda turn, reply: (reply.first_text, reply.first_audio),
    "audible": lambda turn, reply: (reply.first_audio, reply.player.audible_at),
    "stopped_to_first_audio": lambda turn, reply: (turn.stopped, reply.first_audio),
    "stopped_to_audible": lambda turn, reply: (turn.stopped, reply.player.audible_at),
    "speech_end_to_first_audio": lambda turn, reply: (turn.speech_end, reply.first_audio),
    "speech_end_to_audible": lambda turn, reply: (turn.speech_end, reply.player.audible_at),
}
"""t1-t0, t2-t1, t3-t2, t4-t3, t5-t4, then t4-t1, t5-t1, t4-t0, t5-t0."""


def summarise(turns: Sequence[Turn], event_errors: Sequence[str]) -> dict[str, Any]:
    """The figures of a run.

    Returns:
        ``turns`` by outcome; ``errors`` by reason; ``event_errors``, codes of the server's error
        events; ``legs_ms``, spreads of each leg (see LEGS) over turns that were answered;
        ``continuity``: replies with audio, those without a gap over 100 ms in a player with a
        buffer of 100 ms, and their share; ``interruptions_ms``, from speech_started to the last
        audio of a reply that was still being made; ``reply`` lengths; ``word_error_rate`` of the
        input transcripts, where the words are known; ``splits``.
    """
    answered = [(turn, turn.reply) for turn in turns if turn.reply is not None]
    sounding = [reply for _, reply in answered if reply.player.seconds > 0]
    smooth = sum(max(reply.player.gaps, default=0.0) <= LONGEST_GAP_S for reply in sounding)
    counts = Counter(turn.outcome for turn in turns)
    return {
        "turns": {"asked": len(turns), **{name: counts[name] for name in OUTCOMES}},
        "errors": dict(Counter(turn.error for turn in turns if turn.error)),
        "event_errors": dict(Counter(event_errors)),
        "legs_ms": {name: _leg(leg, answered) for name, leg in LEGS.items()},
        "continuity": {
            "replies": len(sounding),
            "smooth": smooth,
            "share": smooth / len(sounding) if sounding else 0.0,
            "longest_gap_ms": 1000 * max((g for r in sounding for g in r.player.gaps), default=0.0),
        },
        "interruptions_ms": spread(
            [reply.cut_delay * 1000 for _, reply in answered if reply.cut_delay is not None]
        ),
        "reply": {
            "audio_s": spread([reply.player.seconds for reply in sounding]),
            "characters": spread([len(reply.text) for _, reply in answered if reply.text]),
        },
        "word_error_rate": _word_errors(turns),
        "splits": sum(turn.splits for turn in turns),
    }


def _leg(
    leg: Callable[[Turn, Reply], tuple[float | None, float | None]],
    answered: Sequence[tuple[Turn, Reply]],
) -> dict[str, float] | None:
    spans = []
    for turn, reply in answered:
        start, end = leg(turn, reply)
        if start is not None and end is not None:
            spans.append((end - start) * 1000)
    return spread(spans)


def _word_errors(turns: Sequence[Turn]) -> float | None:
    """Mean over the turns whose words are known and whose transcript came."""
    rates = [
        word_error_rate(turn.question.text, turn.transcript)
        for turn in turns
        if turn.question.text and turn.transcript is not None
    ]
    return fmean(rates) if rates else None
