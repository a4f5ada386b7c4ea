"""The codec process's loop: takes messages, plans a step, runs it, sends the one before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from antiphon_core.ipc.endpoint import Endpoint
from antiphon_core.logs import get_logger
from antiphon_core.memory import resident_bytes

from antiphon_vocoder.codec_engine.device import StepDevice
from antiphon_vocoder.codec_engine.runner import CodecRunner, Outputs
from antiphon_vocoder.codec_engine.scheduler import PlannedStep, StepScheduler
from antiphon_vocoder.codec_engine.stream import HopStream
from antiphon_vocoder.codec_messages import (
    ClearStream,
    CloseCodecStream,
    CodecDelivered,
    CodecStats,
    FlushStream,
    HopOutput,
    HopsFailed,
    OpenCodecStream,
    PushUnits,
    Stage,
    StepDone,
    StreamsEnded,
)
from antiphon_vocoder.messages import Stop

_STATS_SECONDS = 1.0

log = get_logger("vocoder.codec")


@dataclass(frozen=True)
class _Running:
    """A step whose output has not been sent."""

    step: PlannedStep
    epochs: list[int]
    outputs: Callable[[], Outputs]
    began: float


class CodecLoop:
    """All streams of the process. Every method runs on one thread.

    Args:
        endpoint: the front.
        runners: by codec name.
        scheduler: plans steps.
        lead_seconds: unsent output from which a stream is not scheduled.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        device: StepDevice,
        runners: Mapping[str, CodecRunner],
        scheduler: StepScheduler,
        lead_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._device = device
        self._runners = runners
        self._scheduler = scheduler
        self._lead_seconds = lead_seconds
        self._clock = clock
        self._streams: dict[int, HopStream] = {}
        self._running: _Running | None = None
        self._stopping = False
        self._cancelled_hops = 0
        self._stats_at = clock()
        self._told = [0, 0, 0]

    def run(self) -> None:
        """Serves until Stop."""
        while not self._stopping:
            self.accept(self._endpoint.drain())
            wait = self.turn()
            if wait > 0:
                self._endpoint.wait(min(wait, _STATS_SECONDS))
            self._send_stats()

    def accept(self, messages: Sequence[object]) -> None:
        """Applies messages of the front, in order."""
        for message in messages:
            if isinstance(message, Stop):
                self._stopping = True
            elif isinstance(message, OpenCodecStream):
                self._open(message)
            elif isinstance(
                message, PushUnits | FlushStream | ClearStream | CodecDelivered | CloseCodecStream
            ):
                stream = self._streams.get(message.slot)
                if stream is not None and stream.key == (message.slot, message.generation):
                    self._handle(stream, message)

    def turn(self) -> float:
        """Enqueues the next step, then sends the output of the one before it.

        Returns how many seconds nothing will be to do unless a message comes.
        """
        step, wait = self._scheduler.plan(self._streams.values(), self._clock())
        before, self._running = self._running, None
        if step is not None:
            self._running = self._start(step)
        if before is not None:
            self._finish(before)
        if self._running is not None and not self._device.runs_behind:
            self._finish(self._running)
            self._running = None
        if self._running is not None or step is not None or before is not None:
            return 0.0
        return _STATS_SECONDS if wait is None else wait

    def _open(self, message: OpenCodecStream) -> None:
        self._close(message.slot)
        runner = self._runners[message.codec]
        if message.slot >= runner.slots:
            return
        spec = runner.codec.spec
        seconds = spec.frame_samples / spec.sample_rate
        decodes = message.stage is Stage.DECODE
        self._streams[message.slot] = HopStream(
            (message.slot, message.generation),
            message.codec,
            message.stage,
            runner.plans[message.stage],
            frame_samples=spec.frame_samples,
            frame_seconds=seconds,
            codebooks=message.codebooks,
            lookahead=0 if decodes else spec.encode_lookahead_samples,
            delay=spec.decode_delay_samples if decodes else 0,
            lead_frames=max(1, int(self._lead_seconds / seconds)),
            lookahead_fill=spec.encode_lookahead_fill,
        )

    def _handle(
        self,
        stream: HopStream,
        message: PushUnits | FlushStream | ClearStream | CodecDelivered | CloseCodecStream,
    ) -> None:
        now = self._clock()
        if isinstance(message, PushUnits):
            stream.push(message.data, now)
        elif isinstance(message, FlushStream):
            stream.flush(now, last=message.last)
            if stream.over:
                self._endpoint.send(StreamsEnded(streams=[(*stream.key, stream.epoch)]))
        elif isinstance(message, ClearStream):
            self._cancelled_hops += stream.clear(message.epoch, now)
        elif isinstance(message, CodecDelivered):
            stream.delivered(message.frame_count, now)
        else:
            self._close(message.slot)

    def _close(self, slot: int) -> None:
        stream = self._streams.pop(slot, None)
        if stream is not None:
            stream.closed = True
            self._cancelled_hops += stream.pending_hops + stream.in_flight

    def _start(self, step: PlannedStep) -> _Running:
        began = self._clock()
        outputs = self._runners[step.key.codec].run(step)
        for stream in step.streams:
            stream.refresh(began)
        return _Running(
            step,
            [stream.epoch for stream in step.streams],
            outputs,
            began,
        )

    def _finish(self, running: _Running) -> None:
        step = running.step
        outputs = running.outputs()
        now = self._clock()
        hops: list[HopOutput] = []
        data: list[bytes] = []
        failed: dict[str, list[tuple[int, int]]] = {}
        offset = 0
        for place, (stream, output) in enumerate(zip(step.streams, outputs, strict=True)):
            stream.in_flight -= 1
            if stream.closed:
                continue
            if isinstance(output, Exception):
                self._streams.pop(stream.slot, None)
                stream.closed = True
                cause = f"{type(output).__name__}: {output}"
                failed.setdefault(cause, []).append(stream.key)
                continue
            part = output.astype(output.dtype.newbyteorder("<"), copy=False).tobytes()
            current = running.epochs[place] == stream.epoch
            hops.append(
                HopOutput(
                    slot=stream.slot,
                    generation=stream.key[1],
                    epoch=running.epochs[place],
                    frames=step.key.frames,
                    offset=offset,
                    size=len(part),
                    last=stream.over,
                    slack_seconds=stream.note_output(step.key.frames, now) if current else 0.0,
                )
            )
            stream.refresh(now)
            data.append(part)
            offset += len(part)
        if hops:
            self._endpoint.send(
                StepDone(
                    codec=step.key.codec,
                    stage=step.key.stage,
                    frames=step.key.frames,
                    rows=step.rung,
                    seconds=now - running.began,
                    hops=hops,
                    data=b"".join(data),
                )
            )
        for cause, streams in failed.items():
            self._endpoint.send(HopsFailed(streams=streams, error=cause))

    def _send_stats(self) -> None:
        now = self._clock()
        if now - self._stats_at < _STATS_SECONDS:
            return
        self._stats_at = now
        runners = self._runners.values()
        totals = [
            sum(runner.resets for runner in runners),
            sum(runner.retried_steps for runner in runners),
            sum(runner.graph_misses for runner in runners),
        ]
        resets, retried, misses = (np.array(totals) - self._told).tolist()
        self._told = totals
        cancelled, self._cancelled_hops = self._cancelled_hops, 0
        self._endpoint.send(
            CodecStats(
                cancelled_hops=cancelled,
                resets=resets,
                retried_steps=retried,
                graph_misses=misses,
                resident_bytes=resident_bytes(),
                device_bytes=self._device.used_bytes() if self._device.runs_behind else 0,
            )
        )
