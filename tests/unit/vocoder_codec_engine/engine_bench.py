"""The codec loop without a process: messages in, messages out, a clock that is told the time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
from antiphon_vocoder.codec_engine.boot import boot, hop_plans
from antiphon_vocoder.codec_engine.device import HostStepDevice, StepDevice
from antiphon_vocoder.codec_engine.loop import CodecLoop
from antiphon_vocoder.codec_engine.runner import CodecRunner
from antiphon_vocoder.codec_engine.scheduler import StepScheduler
from antiphon_vocoder.codec_messages import (
    ClearStream,
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
    StreamsEnded,
)
from support.fake_codec import CODEBOOKS, SIZE


def engine_config(**fields: Any) -> CodecEngineConfig:
    values: dict[str, Any] = {
        "codecs": ["fake"],
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "slots": 0,
        "memory_bytes": 0,
        "rungs": [1, 4, 16, 64],
        "decode_ramp": [1, 2, 4],
        "encode_ramp": [1],
        "peer_wait_seconds": 0.0,
        "lead_seconds": 30.0,
    }
    return CodecEngineConfig(**{**values, **fields})


class Clock:
    """Seconds that only move when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A loop over one codec.

    Args:
        booted: as the process comes up, with the real clock, instead of bound to the given rungs.

    Attributes:
        samples: decoded samples of each stream by key.
        codes: encoded codes of each stream by key.
        ended, failed: keys of streams that are over.
        steps: every step's message.
        rungs: rows that steps may have; a boot leaves out what is slower than real time here.
    """

    def __init__(
        self,
        codec: Any,
        *,
        slots: int = 8,
        rungs: tuple[int, ...] = (1, 4, 16, 64),
        costs: Any = None,
        device: StepDevice | None = None,
        record: bool = True,
        booted: bool = False,
        **config: Any,
    ) -> None:
        self.clock = Clock()
        self.codec = codec
        self.samples: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
        self.codes: dict[tuple[int, int], list[np.ndarray]] = defaultdict(list)
        self.ended: list[tuple[int, int]] = []
        self.failed: list[tuple[int, int]] = []
        self.steps: list[StepDone] = []
        self._generations: dict[int, int] = defaultdict(int)
        self.codebooks: dict[tuple[int, int], int] = {}
        settings = engine_config(rungs=list(rungs), slots=slots, **config)
        endpoint: Any = self
        self.rungs = list(rungs)
        if booted:
            settings = msgspec.structs.replace(settings, codecs=["fake=nowhere"])
            self.loop = boot(endpoint, settings, lambda *_: codec)
            self.loop._scheduler = StepScheduler(self.rungs, {}, settings.peer_wait_seconds)
            self.runner = self.loop._runners["fake"]
            return
        plans = hop_plans(codec, settings)
        device = device or HostStepDevice(0)
        self.runner = CodecRunner("fake", codec, device, slots=slots, plans=plans)
        for rung in rungs if record else ():
            self.runner.bind(rung, timed=False)
        scheduler = StepScheduler(rungs, costs or {}, settings.peer_wait_seconds)
        self.loop = CodecLoop(
            endpoint,
            device,
            {"fake": self.runner},
            scheduler,
            settings.lead_seconds,
            self.clock,
        )

    def send(self, message: object) -> None:
        """The loop's way to the front."""
        if isinstance(message, StepDone):
            self.steps.append(message)
            for hop in message.hops:
                key = (hop.slot, hop.generation)
                part = message.data[hop.offset : hop.offset + hop.size]
                if message.stage is Stage.DECODE:
                    self.samples[key].append(np.frombuffer(part, "<f4"))
                else:
                    rows = np.frombuffer(part, "<i4").reshape(-1, self.codebooks[key])
                    self.codes[key].append(rows)
                if hop.last:
                    self.ended.append(key)
        elif isinstance(message, StreamsEnded):
            self.ended += [(slot, generation) for slot, generation, _ in message.streams]
        elif isinstance(message, HopsFailed):
            self.failed += message.streams
        elif isinstance(message, CodecEngineReady):
            self.rungs = message.rungs

    def open(
        self, slot: int, *, stage: Stage = Stage.DECODE, codebooks: int = CODEBOOKS
    ) -> tuple[int, int]:
        self._generations[slot] += 1
        key = (slot, self._generations[slot])
        self.codebooks[key] = codebooks
        self.loop.accept(
            [
                OpenCodecStream(
                    slot=slot, generation=key[1], codec="fake", stage=stage, codebooks=codebooks
                )
            ]
        )
        return key

    def push(self, key: tuple[int, int], values: np.ndarray) -> None:
        kind = "<i4" if values.dtype.kind == "i" else "<f4"
        self._tell(PushUnits, key, data=values.astype(kind).tobytes())

    def flush(self, key: tuple[int, int], *, last: bool = True) -> None:
        self._tell(FlushStream, key, last=last)

    def clear(self, key: tuple[int, int], epoch: int) -> None:
        self._tell(ClearStream, key, epoch=epoch)

    def delivered(self, key: tuple[int, int], frames: int) -> None:
        self._tell(CodecDelivered, key, frame_count=frames)

    def close(self, key: tuple[int, int]) -> None:
        self._tell(CloseCodecStream, key)

    def turns(self, count: int = 10_000) -> int:
        """Lets the loop run until nothing can; returns the steps it made."""
        before = len(self.steps)
        for _ in range(count):
            if self.loop.turn() > 0:
                break
        return len(self.steps) - before

    def heard(self, key: tuple[int, int]) -> np.ndarray:
        return np.concatenate(self.samples[key] or [np.zeros(0, np.float32)])

    def encoded(self, key: tuple[int, int]) -> np.ndarray:
        return np.concatenate(self.codes[key] or [np.zeros((0, 1), np.int32)])

    def speak(self, slot: int, codes: np.ndarray, cuts: list[int] | None = None) -> np.ndarray:
        """A whole stream, its input cut at these frames and run after each piece."""
        key = self.open(slot, codebooks=codes.shape[1])
        for start, stop in pieces(len(codes), cuts or []):
            self.push(key, codes[start:stop])
            self.turns()
            self.delivered(key, sum(map(len, self.samples[key])) // self.codec.spec.frame_samples)
        self.flush(key)
        self.turns()
        assert self.ended.count(key) == 1
        self.close(key)
        return self.heard(key)

    def _tell(self, kind: Any, key: tuple[int, int], **fields: Any) -> None:
        self.loop.accept([kind(slot=key[0], generation=key[1], **fields)])


def pieces(length: int, cuts: list[int]) -> list[tuple[int, int]]:
    """Ranges between cuts, empty ones included."""
    ends = [0, *sorted(cuts), length]
    return list(itertools.pairwise(ends))


def random_codes(seed: int, frames: int, codebooks: int = CODEBOOKS) -> np.ndarray:
    """Codes (frames, codebooks) without the scripted ones."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, SIZE - 2, (frames, codebooks), dtype=np.int32)
