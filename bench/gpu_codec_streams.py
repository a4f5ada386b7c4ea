"""Streams of codes on a CUDA device: does anybody hear a gap, and how soon does each one start.

A full-size Mimi with random weights in the codec process's own loop, without sockets. N streams
start as a Poisson process, their codes come at a multiple of real time in pieces of one frame, and
every arrival of audio is replayed through a player with a 100 ms start buffer. The report states
concurrency, arrivals and the hop plan; real-time factors never stand alone.

    python -m bench.gpu_codec_streams [--bars] [--streams 32 128] [--dtype fp32] [--json FILE]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from antiphon_vocoder.codec_engine.boot import boot
from antiphon_vocoder.codec_messages import (
    CloseCodecStream,
    CodecDelivered,
    CodecEngineConfig,
    CodecEngineReady,
    FlushStream,
    HopsFailed,
    OpenCodecStream,
    PushUnits,
    Stage,
    StepDone,
)
from antiphon_vocoder.config import VocoderSettings
from antiphon_vocoder.messages import Stop
from antiphon_vocoder.metrics import PlayerModel

from bench import gpu_command
from bench.gpu_codec import SMALL
from bench.random_codec import random_mimi

RAMP = list(VocoderSettings().decode_ramp)
START_SECONDS = 4.0
"""Within which all streams have started, on average."""


@dataclass
class Listener:
    """One stream of the load."""

    slot: int
    codes: np.ndarray
    starts_at: float
    pushed: int = 0
    heard: int = 0
    first_ready: float | None = None
    first_audio: float | None = None
    last_audio: float = 0.0
    player: PlayerModel = field(default_factory=PlayerModel)


class Load:
    """The Endpoint of a loop under load: sends what is due, hears what comes.

    Args:
        listeners: by slot.
        pace: frames of codes a second of each stream.
        frame_seconds: length of a frame.
    """

    def __init__(self, listeners: list[Listener], pace: float, frame_seconds: float) -> None:
        self._listeners = listeners
        self._pace = pace
        self._frame_seconds = frame_seconds
        self._origin = time.perf_counter()
        self._delivered: list[object] = []
        self._over = 0
        self.steps: list[tuple[float, int, int, int, float]] = []
        """(time, frames, streams, rows, seconds) of each step."""
        self.failed = 0

    def now(self) -> float:
        """Seconds since the load began."""
        return time.perf_counter() - self._origin

    def begin(self) -> None:
        """The load begins now."""
        self._origin = time.perf_counter()

    def drain(self) -> list[object]:
        """Messages that are due."""
        now = self.now()
        due, self._delivered = self._delivered, []
        for listener in self._listeners:
            due += self._due(listener, now)
        return [*due, Stop()] if self._over == len(self._listeners) else due

    def _due(self, listener: Listener, now: float) -> list[object]:
        total = len(listener.codes)
        if now < listener.starts_at or listener.pushed == total:
            return []
        key = {"slot": listener.slot, "generation": 1}
        messages: list[object] = []
        if listener.pushed == 0:
            listener.first_ready = now
            count = listener.codes.shape[1]
            messages.append(
                OpenCodecStream(codec="mimi", stage=Stage.DECODE, codebooks=count, **key)
            )
        ready = min(total, 1 + int((now - listener.starts_at) * self._pace))
        if ready > listener.pushed:
            data = listener.codes[listener.pushed : ready].astype("<i4").tobytes()
            messages.append(PushUnits(data=data, **key))
            listener.pushed = ready
        if listener.pushed == total:
            messages.append(FlushStream(last=True, **key))
        return messages

    def wait(self, timeout: float | None) -> bool:
        """Waits a little: codes come by the clock."""
        time.sleep(min(timeout or 0.001, 0.001))
        return True

    def send(self, message: object) -> None:
        """Hears a message of the loop."""
        now = self.now()
        if isinstance(message, HopsFailed):
            self.failed += len(message.streams)
            self._over += len(message.streams)
        if not isinstance(message, StepDone):
            return
        self.steps.append((now, message.frames, len(message.hops), message.rows, message.seconds))
        for hop in message.hops:
            listener = self._listeners[hop.slot]
            if listener.first_audio is None:
                listener.first_audio = now
            listener.last_audio = now
            listener.heard += hop.frames
            listener.player.arrive(now, hop.frames * self._frame_seconds)
            key = {"slot": hop.slot, "generation": 1}
            self._delivered.append(CodecDelivered(frame_count=listener.heard, **key))
            if hop.last:
                self._over += 1
                self._delivered.append(CloseCodecStream(**key))

    def close(self, flush_seconds: float = 0.0) -> None:
        """Nothing is buffered."""


class _Boot:
    """The Endpoint of a boot."""

    def __init__(self) -> None:
        self.ready: CodecEngineReady | None = None

    def send(self, message: object) -> None:
        """Keeps what is served."""
        if isinstance(message, CodecEngineReady):
            self.ready = message


@dataclass
class Round:
    """What one number of streams gave."""

    streams: int
    arrivals: str
    audio_seconds: float
    wall_seconds: float
    first_audio_ms: dict[str, float]
    underruns: int
    continuity: float
    least_slack_ms: float
    real_time_factor: dict[str, float]
    step_ms: dict[str, dict[str, float]]
    streams_a_step: float
    growth_percent: float
    """Change of a steady step's median from the first third of the round to the last."""
    graph_misses: int
    failed: int


def run_round(options: argparse.Namespace, count: int, *, together: bool) -> Round:
    """Boots a loop for ``count`` streams and plays them."""
    endpoint = _Boot()
    config = CodecEngineConfig(
        codecs=["mimi=random"], device=options.device, precision=options.dtype, threads=1,
        slots=count, memory_bytes=0, rungs=[r for r in (1, 4, 16, 64, 256) if r < 4 * count],
        decode_ramp=RAMP, encode_ramp=[1], peer_wait_seconds=0.002, lead_seconds=30.0,
    )  # fmt: skip
    changes = SMALL if options.small else {}
    load_codec = lambda _, device, precision: random_mimi(device, precision, **changes)  # noqa: E731
    loop = boot(endpoint, config, load_codec)  # pyright: ignore[reportArgumentType]
    assert endpoint.ready is not None
    info = endpoint.ready.codecs[0]
    print(f"  boot: rungs {endpoint.ready.rungs}, {endpoint.ready.recorded} shapes recorded, "
          f"{endpoint.ready.stream_bytes / 2**20:.1f} MiB a slot", flush=True)  # fmt: skip
    generator = random.Random(count)
    codes = np.random.default_rng(count)
    frames = int(options.seconds * info.frame_rate)
    shape = (frames, info.codebook_count)
    begins, listeners = 0.0, []
    for slot in range(count):
        begins = 0.0 if together else begins + generator.expovariate(count / START_SECONDS)
        own = codes.integers(0, info.codebook_size, shape, dtype=np.int32)
        listeners.append(Listener(slot, own, begins))
    seconds = info.frame_samples / info.sample_rate
    load = Load(listeners, options.pace / seconds, seconds)
    loop._endpoint = load
    load.begin()
    loop.run()
    misses = sum(runner.graph_misses for runner in loop._runners.values())
    arrivals = "together" if together else f"Poisson within {START_SECONDS:g} s"
    return summarise(load, listeners, seconds, misses, arrivals)


def summarise(
    load: Load, listeners: list[Listener], seconds: float, misses: int, arrivals: str
) -> Round:
    """The figures of a round."""
    starts = [
        1000 * (listener.first_audio - listener.first_ready)
        for listener in listeners
        if listener.first_audio is not None and listener.first_ready is not None
    ]
    factors = [
        (listener.last_audio - listener.starts_at) / (len(listener.codes) * seconds)
        for listener in listeners
    ]
    by_length: dict[int, list[float]] = defaultdict(list)
    for _, frames, _, _, taken in load.steps:
        by_length[frames].append(1000 * taken)
    steady = by_length[max(by_length)]
    third = max(1, len(steady) // 3)
    growth = statistics.median(steady[-third:]) / statistics.median(steady[:third]) - 1
    return Round(
        streams=len(listeners),
        arrivals=arrivals,
        audio_seconds=sum(listener.heard for listener in listeners) * seconds,
        wall_seconds=load.now(),
        first_audio_ms=_spread(starts),
        underruns=sum(listener.player.underruns for listener in listeners),
        continuity=statistics.mean(listener.player.continuous for listener in listeners),
        least_slack_ms=1000 * min(listener.player.least_slack for listener in listeners),
        real_time_factor=_spread(factors),
        step_ms={f"{frames} frames": _spread(taken) for frames, taken in by_length.items()},
        streams_a_step=statistics.mean(step[2] for step in load.steps),
        growth_percent=100 * growth,
        graph_misses=misses,
        failed=load.failed,
    )


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    place = partial(_quantile, ordered)
    return {"p50": place(0.5), "p99": place(0.99), "most": ordered[-1]}


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every number of streams, with Poisson starts, and the last one starting together."""
    rounds = []
    plan = [(count, False) for count in options.streams] + [(options.streams[-1], True)]
    for count, together in plan:
        found = run_round(options, count, together=together)
        rounds.append(asdict(found))
        print(
            f"{count} streams, {found.arrivals}, codes at {options.pace:g} x real time,"
            f" hops {RAMP}: first audio p50 {found.first_audio_ms['p50']:.1f} p99"
            f" {found.first_audio_ms['p99']:.1f} ms, underruns {found.underruns}, continuity"
            f" {found.continuity:.0%}, least slack {found.least_slack_ms:.0f} ms,"
            f" {found.streams_a_step:.1f} streams a step, steps of {found.step_ms},"
            f" {found.audio_seconds / found.wall_seconds:.1f} s of audio a second, per-stream"
            f" factor {found.real_time_factor['p99']:.3f}, growth {found.growth_percent:+.1f} %,"
            f" graph misses {found.graph_misses}, failed {found.failed}",
            flush=True,
        )
    return {"rounds": rounds, "pace": options.pace, "dtype": options.dtype}


def judge(raw: dict[str, Any]) -> int:
    """Bars on every round with Poisson starts; the exit status to use."""
    from bench.report import Report

    report = Report("codec_streams")
    poisson = [found for found in raw["rounds"] if found["arrivals"] != "together"]
    report.add("underruns", sum(found["underruns"] for found in poisson), raw)
    report.add("first_audio_p99", max(found["first_audio_ms"]["p99"] for found in poisson))
    report.add("graph_misses", sum(found["graph_misses"] for found in raw["rounds"]))
    report.add("failed", sum(found["failed"] for found in raw["rounds"]))
    report.add("step_growth", max(found["growth_percent"] for found in poisson))
    return report.finish()


def main() -> int:
    """Reads the command line and measures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--dtype", default="fp32", choices=("fp32", "tf32", "bf16x3", "fp16", "bf16")
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[32, 128, 256])
    parser.add_argument("--seconds", type=float, default=20.0, help="audio of each stream")
    parser.add_argument("--pace", type=float, default=1.5, help="codes, in real times")
    parser.add_argument("--small", action="store_true", help="a small codec, to try the script")
    parser.add_argument("--bars", action="store_true")
    parser.add_argument("--json", type=Path)
    return gpu_command.run(parser.parse_args(), measure, judge)


if __name__ == "__main__":
    sys.exit(main())
