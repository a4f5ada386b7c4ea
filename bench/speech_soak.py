"""Speech and recognition together for many minutes: below the measured capacity and above it.

32 recognition streams talk now and then, in real time, while texts to speak come at random times.
At half and at four fifths of the capacity nobody's audio may run dry; above it streams are refused
with a retry time, and those that were taken still end. At the end slots and memory are as they
were.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from bench.report import commit, machine
from bench.speech_service import (
    HEARD_RATE,
    TEXTS,
    SpeechService,
    Spoken,
    listen,
    speak,
    speech_service,
)

LISTENERS = 32
CALLERS = 32
"""Speech streams in flight at most while the load is below the capacity."""
TALK_SHARE = 0.08
"""Part of a listener's audio that is speech: together about two and a half people talk."""
BELOW, NEAR, ABOVE = 0.5, 0.8, 6.0
"""Offered load over the measured capacity. Near it Poisson arrivals wait for each other."""
PHASES = ((0.2, NEAR), (0.08, ABOVE), (0.3, BELOW), (0.08, ABOVE), (0.34, BELOW))
"""(Share of the time, load). Memory is compared between the two below, each after an overload: the
first one may still make allocators grow, another must not."""
CAPACITY_S = 10.0
PATIENCE_S = 120.0
WINDOW_SHARE = 0.08
WARM_SHARE = 0.5
"""Memory counts as warm in the window that ends here."""
_TURN_S = 30.0


@dataclass
class Findings:
    """What the soak saw. Bytes are of the front, the speech and the recogniser process together."""

    commit: str
    """Revision at the start of the run."""
    seconds: float
    capacity_per_s: float = 0.0
    """Streams a second that all slots serve beside the listeners."""
    below: dict[str, int] = field(default_factory=dict)
    """Streams at ``BELOW``: done, refused, other errors, underruns, lost."""
    near: dict[str, int] = field(default_factory=dict)
    """The same at ``NEAR``."""
    above: dict[str, int] = field(default_factory=dict)
    heard: dict[str, int] = field(default_factory=dict)
    """Recognition streams: done, lost, errors; finals with text and without."""
    first_audio_s: list[float] = field(default_factory=list)
    """Of the streams at ``BELOW``."""
    slots_left: int = -1
    memory_warm: float = 0.0
    memory_end: float = 0.0
    memory_samples: list[int] = field(default_factory=list)
    """One a second."""

    @property
    def spoken(self) -> dict[float, dict[str, int]]:
        """Outcomes of speech streams by load."""
        return {BELOW: self.below, NEAR: self.near, ABOVE: self.above}

    @property
    def memory_growth(self) -> float:
        """Share by which memory grew after the warm-up."""
        return self.memory_end / self.memory_warm - 1.0

    def write(self, directory: Path) -> Path:
        """Writes soak-speech-<machine>-<commit>.json and returns its path."""
        host = machine()
        directory.mkdir(exist_ok=True)
        path = directory / f"soak-speech-{host['name']}-{self.commit}.json"
        path.write_text(json.dumps(asdict(self) | {"machine": host}, indent=2) + "\n", "utf-8")
        return path


async def soak(seconds: float, run_dir: Path, tell: Callable[[str], None]) -> Findings:
    """Runs the load for ``seconds`` against a vocoder service of its own."""
    found = Findings(commit(), seconds)
    async with speech_service(run_dir / "soak") as service:
        voices = [(await speak(service, [text])).samples() for text in TEXTS]
        listeners = [
            asyncio.create_task(_listener(service, voices, seed, found.heard))
            for seed in range(LISTENERS)
        ]
        watch = asyncio.create_task(_watch(service, found.memory_samples))
        try:
            slots = (await service.slots()).total
            found.capacity_per_s = await _capacity(service, slots, min(CAPACITY_S, seconds / 4))
            tell(f"capacity: {found.capacity_per_s:.2f} streams a second over {slots} slots")
            for share, load in PHASES:
                outcome = found.spoken[load]
                rate = load * found.capacity_per_s
                if load > 1:
                    # Enough to fill the slots and their queue (four a slot) however slow they are.
                    rate = max(rate, 8 * slots / (share * seconds))
                spoken = await _offer(service, rate, share * seconds, full=load > 1)
                _count(spoken, outcome)
                if load == BELOW:
                    found.first_audio_s += [
                        one.first - one.began for one in spoken if one is not None and one.first
                    ]
                tell(f"{load:g} x capacity for {share * seconds:.0f} s: {outcome}")
        finally:
            await _ended(listeners)
            await _ended([watch])
        found.slots_left = await _slots_left(service)
    _memory(found)
    tell(f"recognition: {found.heard}; memory {100 * found.memory_growth:+.2f} %")
    return found


def first_audio_p50(found: Findings) -> float:
    """Seconds, median at ``BELOW``."""
    return statistics.median(found.first_audio_s) if found.first_audio_s else float("nan")


async def _capacity(service: SpeechService, slots: int, seconds: float) -> float:
    """Streams a second of as many callers as there are slots."""
    began = time.monotonic()
    done = 0

    async def caller(seed: int) -> None:
        nonlocal done
        while time.monotonic() - began < seconds:
            await speak(service, [TEXTS[(seed + done) % len(TEXTS)]], keep=False)
            done += 1

    await asyncio.gather(*(caller(seed) for seed in range(slots)))
    return done / (time.monotonic() - began)


async def _offer(
    service: SpeechService, rate: float, seconds: float, *, full: bool
) -> list[Spoken | None]:
    """Poisson starts for ``seconds``; None stands for a stream that never ended."""
    chance = random.Random(f"{rate}")
    room = asyncio.Semaphore(10_000 if full else CALLERS)
    tasks: list[asyncio.Task[Spoken | None]] = []
    ends = time.monotonic() + seconds

    async def one(text: str) -> Spoken | None:
        with suppress(TimeoutError):
            async with room, asyncio.timeout(PATIENCE_S):
                return await speak(service, [text], keep=False)
        return None

    while time.monotonic() < ends:
        tasks.append(asyncio.create_task(one(chance.choice(TEXTS))))
        await asyncio.sleep(chance.expovariate(rate))
    return await asyncio.gather(*tasks)


def _count(spoken: list[Spoken | None], outcome: dict[str, int]) -> None:
    """Adds what became of the streams."""
    counts = Counter(outcome)
    for one in spoken:
        if one is None or (not one.error and one.finished != 1):
            counts["lost"] += 1
        elif one.error in ("SLOTS_FULL", "QUEUE_FULL"):
            counts["refused"] += 1
            counts["without_retry"] += not one.retry
        elif one.error:
            counts[f"error_{one.error}"] += 1
        else:
            counts["done"] += 1
            counts["underruns"] += one.player.underruns
    outcome.update(counts)


async def _listener(
    service: SpeechService, voices: list[np.ndarray], seed: int, outcome: dict[str, int]
) -> None:
    """One recognition stream after another: mostly silence, paced in real time."""
    chance = random.Random(seed)
    while True:
        voice = chance.choice(voices)
        turn = np.zeros(int(chance.uniform(0.5, 1.0) * _TURN_S) * HEARD_RATE, np.float32)
        if chance.random() < TALK_SHARE * len(turn) / len(voice):
            start = chance.randrange(len(turn) - len(voice))
            turn[start : start + len(voice)] = voice
        heard = await listen(service, turn, paced=True)
        counts = Counter(outcome)
        counts["done" if heard.finished == 1 else "lost" if not heard.error else "errors"] += 1
        counts["texts"] += sum(bool(text) for text in heard.finals)
        counts["invented"] += bool(heard.text) and not np.any(turn)
        outcome.update(counts)


async def _watch(service: SpeechService, samples: list[int]) -> None:
    while True:
        samples.append(service.resident_bytes())
        await asyncio.sleep(1.0)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancels endless tasks; one that failed by itself raises."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def _slots_left(service: SpeechService, seconds: float = 30.0) -> int:
    """Slots in use or waited for once that has had time to become 0."""
    left = -1
    for _ in range(int(seconds / 0.2)):
        now = await service.slots()
        left = now.busy + now.queued
        if left == 0:
            break
        await asyncio.sleep(0.2)
    return left


def _memory(found: Findings) -> None:
    samples = found.memory_samples
    window = max(1, int(len(samples) * WINDOW_SHARE))
    warm = int(len(samples) * WARM_SHARE)
    found.memory_warm = statistics.mean(samples[warm - window : warm] or samples[:1])
    found.memory_end = statistics.mean(samples[-window:])
