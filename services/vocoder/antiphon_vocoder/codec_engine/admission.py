"""How many streams the codec process takes: what memory holds and what its speed keeps up with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from antiphon_vocoder.codec_engine.runner import CodecRunner
from antiphon_vocoder.codec_engine.stream import StepKey
from antiphon_vocoder.codec_messages import Stage

SPEED_SHARE = 0.8
"""Share of real time that steps may take when every slot streams: the rest is for starts."""
MOST_SLOTS = 1024
_GIB = 1 << 30


class DoesNotFit(ValueError):
    """The memory that was granted does not hold what was asked for."""


@dataclass(frozen=True)
class Admission:
    """The decision."""

    slots: int
    bound: str
    """``setting``, ``memory`` or ``speed``."""


def admit(
    *, wanted: int, memory_bytes: int, base_bytes: int, stream_bytes: int, keeps_up_with: int
) -> Admission:
    """Slots: ``wanted`` if it is not 0, else what memory and speed allow.

    Args:
        memory_bytes: granted in all.
        base_bytes: weights, workspaces and recorded steps.
        stream_bytes: state of one slot. It does not grow with a stream's length.
        keeps_up_with: streams whose steps end in time.

    Raises:
        DoesNotFit: with the shortfall, if not all wanted slots fit, or not even one.
    """
    fits = max(0, memory_bytes - base_bytes) // max(1, stream_bytes)
    least = wanted or 1
    if fits < least:
        needed = base_bytes + least * stream_bytes
        raise DoesNotFit(
            f"{least} slot{'s' if least > 1 else ''} need {_gib(needed)} GiB"
            f" ({_gib(base_bytes)} for weights and workspaces, {_gib(stream_bytes)} a slot) and"
            f" memory_gib gives {_gib(memory_bytes)}: short of {_gib(needed - memory_bytes)} GiB"
        )
    if wanted:
        return Admission(wanted, "setting")
    by_speed = max(1, min(keeps_up_with, MOST_SLOTS))
    return Admission(by_speed, "speed") if by_speed <= fits else Admission(fits, "memory")


def streams_kept_up_with(runners: Mapping[str, CodecRunner], rungs: Sequence[int]) -> int:
    """Streams in real time at most, of the codec and direction that is slowest.

    Steps of one rung, one after the other, within ``SPEED_SHARE`` of the audio that they give.
    """
    return min(
        max(int(rung * share_left(runner, stage, rung)) for rung in rungs)
        for runner in runners.values()
        for stage in runner.plans
    )


def share_left(runner: CodecRunner, stage: Stage, rung: int) -> float:
    """How many steps of this rung fit into the allowed share of the time that they last."""
    plan = runner.plans[stage]
    key = StepKey(runner.name, stage, plan.steady)
    spec = runner.codec.spec
    seconds = plan.steady * spec.frame_samples / spec.sample_rate
    return SPEED_SHARE * seconds / max(runner.costs[key][rung], 1e-9)


def _gib(count: int) -> str:
    return f"{count / _GIB:.3g}"
