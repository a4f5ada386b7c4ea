"""Runs planned steps of one codec over its slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from antiphon_core.logs import get_logger
from numpy.typing import NDArray

from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec_engine.bound import BoundStep
from antiphon_vocoder.codec_engine.device import StepDevice, is_fatal
from antiphon_vocoder.codec_engine.hops import HopPlan
from antiphon_vocoder.codec_engine.scheduler import PlannedStep
from antiphon_vocoder.codec_engine.stream import TAIL, HopStream, StepKey
from antiphon_vocoder.codec_messages import Stage

_TIMED_RUNS = 3
_TIMED_SECONDS = 0.05

Outputs = list[NDArray[Any] | Exception]
"""Of each stream of a step its samples (n,) or codes (T * k,), or why there are none."""

log = get_logger("vocoder.codec")


class CodecRunner:
    """State of the slots of one codec, and its steps by shape.

    Args:
        name: under which the codec is served.
        codec: loaded.
        slots: streams at once.
        plans: how streams of each direction that it serves are cut.

    Attributes:
        graph_misses: steps of shapes that are not in the ladder.
        retried_steps: steps that raised and were run again, row by row.
        resets: slots that were zeroed for a new stream.
        costs: measured seconds by key and rung.
    """

    def __init__(
        self,
        name: str,
        codec: Codec,
        device: StepDevice,
        *,
        slots: int,
        plans: dict[Stage, HopPlan],
    ) -> None:
        self.name = name
        self.codec = codec
        self.slots = slots
        self.plans = plans
        self.graph_misses = self.retried_steps = self.resets = 0
        self.costs: dict[StepKey, dict[int, float]] = {}
        self._device = device
        self._bound: dict[tuple[StepKey, int], BoundStep] = {}
        make = {Stage.DECODE: codec.decoder_state, Stage.ENCODE: codec.encoder_state}
        self.states: dict[Stage, SlotState] = {
            stage: make[stage](slots, plan.longest) for stage, plan in plans.items()
        }

    @property
    def bytes_per_slot(self) -> int:
        """State of one slot, both directions."""
        return sum(state.bytes_per_slot for state in self.states.values())

    @property
    def recorded(self) -> int:
        """Shapes of the ladder."""
        return len(self._bound)

    def keys(self) -> list[StepKey]:
        """Every kind of step that belongs to the ladder, the longest first."""
        keys = []
        for stage, plan in self.plans.items():
            keys += [StepKey(self.name, stage, frames) for frames in reversed(plan.sizes)]
            if stage is Stage.DECODE and self.codec.spec.decode_delay_samples:
                keys.append(StepKey(self.name, stage, TAIL))
        return keys

    def bind(self, rung: int, *, timed: bool = True) -> None:
        """Adds the steps of one rung to the ladder, warm, and times them if asked to.

        Zeroing is warmed as well: every stream's first hop begins with it.

        Raises:
            torch.OutOfMemoryError: they do not fit; those that were added stay.
        """
        for state in self.states.values():
            self._zero(state, [state.null_row])
        for key in self.keys():
            bound = BoundStep(self._device, self.codec, self.states[key.stage], key, rung)
            bound.record()
            self._bound[key, rung] = bound
            if timed:
                self.costs.setdefault(key, {})[rung] = _seconds(bound)
            elif self._device.runs_behind:
                # A recording's first replay uploads it: the first listener must not wait for that.
                bound.launch([], [])()

    def release(self) -> None:
        """Drops states and ladder; the object is of no use afterwards."""
        self._bound.clear()
        self.states.clear()

    def run(self, step: PlannedStep) -> Callable[[], Outputs]:
        """Takes the hops' input, enqueues the step and returns what waits for its outputs.

        A step that raises is run again row by row: only rows that raise again fail.

        Raises:
            RuntimeError: the device is lost; the process must end.
        """
        self._zero_fresh(step.streams)
        values = [stream.take() for stream in step.streams]
        slots = [stream.slot for stream in step.streams]
        if (step.key, step.rung) not in self._bound:
            self.graph_misses += 1
        try:
            outputs = self._step_of(step).launch(values, slots)
        except Exception as error:
            if is_fatal(error):
                raise
            log.warning("codec_step_failed", key=str(step.key), rows=len(slots), error=str(error))
            self.retried_steps += 1
            rows = zip(values, slots, strict=True)
            outputs = _settled([self._alone(step, value, slot) for value, slot in rows])
        return lambda: [
            _cut(output, stream, step.key, self.codec)
            for output, stream in zip(outputs(), step.streams, strict=True)
        ]

    def _zero_fresh(self, streams: Sequence[HopStream]) -> None:
        fresh = [stream for stream in streams if stream.fresh]
        if not fresh:
            return
        self.resets += len(fresh)
        self._zero(self.states[fresh[0].stage], [stream.slot for stream in fresh])
        for stream in fresh:
            stream.fresh = False

    def _zero(self, state: SlotState, rows: list[int]) -> None:
        with torch.inference_mode():
            state.reset(torch.tensor(rows, dtype=torch.int64, device=self._device.device))

    def _step_of(self, step: PlannedStep) -> BoundStep:
        """Of the ladder, or one that is made now: the only hop of a stream shorter than a first
        hop, for example, which may find no memory."""
        made = self._bound.get((step.key, step.rung))
        if made is not None:
            return made
        state = self.states[step.key.stage]
        return BoundStep(self._device, self.codec, state, step.key, step.rung)

    def _alone(self, step: PlannedStep, value: NDArray[Any], slot: int) -> NDArray[Any] | Exception:
        """One row of a step that raised; it may not raise for this one."""
        try:
            return self._step_of(step).launch([value], [slot])()[0]
        except Exception as error:
            if is_fatal(error):
                raise
            return error


def _seconds(bound: BoundStep) -> float:
    """Time of one step; a slow one is timed once."""
    started, spent, runs = time.perf_counter(), 0.0, 0
    while runs < _TIMED_RUNS and spent < _TIMED_SECONDS:
        bound.launch([], [])()
        runs += 1
        spent = time.perf_counter() - started
    return spent / runs


def _settled(outputs: Outputs) -> Callable[[], Outputs]:
    return lambda: outputs


def _cut(
    output: NDArray[Any] | Exception, stream: HopStream, key: StepKey, codec: Codec
) -> NDArray[Any] | Exception:
    """What of a row's output belongs to its stream."""
    if isinstance(output, Exception):
        return output
    if key.stage is Stage.ENCODE:
        frames = output.reshape(key.frames, codec.spec.codebook_count)
        return np.ascontiguousarray(frames[:, : stream.codebooks]).reshape(-1)
    # A stream that is shorter than the delay has some of it left to drop at its end.
    late = min(codec.spec.decode_delay_samples - stream.trimmed, len(output))
    stream.trimmed += late
    return output[late:]
