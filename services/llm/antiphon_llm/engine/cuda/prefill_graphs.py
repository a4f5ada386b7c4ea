"""Prefill steps recorded as graphs: a ladder of token counts, for short and for long contexts.

They pay where the host takes longer to enqueue a step than the device to run it: with few
tokens, or small models. Which rungs these are is measured when they are recorded.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from antiphon_core.logs import get_logger

from .device import Device
from .recordings import Recordings

_log = get_logger(__name__)

LADDER = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Tokens of a recorded step; a shorter one pads its tail to the null entry."""

ROWS = 8
"""Most rows of a recorded step; the places of missing rows have no query."""

SHORT_CONTEXT = 1024
"""Bound of the contexts that the first of two recordings of a rung serves: attention's shape of
launch is a fact of the longest."""

SWITCHED_OFF = "off"
MANY_TOKENS = "above ladder"
MANY_ROWS = "more rows than recorded"
READ = "prompt is read"
ADAPTED = "adapters"
"""Some prompt goes through an adapter: recordings are of the model itself."""
NOT_RECORDED = "not recorded"

_TIMINGS = 3


@dataclass(frozen=True, slots=True, order=True)
class PrefillKey:
    """Shape of a recorded prefill step: its tokens, and the bound of its rows' contexts."""

    tokens: int
    context: int

    def __str__(self) -> str:
        return f"{self.tokens} tokens in contexts up to {self.context}"


class PrefillGraphs:
    """Recorded prefill steps.

    Attributes:
        recordings: the graphs by key.
        replays, pad_tokens: steps that a graph ran, and the padding in them.
        eager: prefill steps that took the Python path, by reason.
    """

    def __init__(
        self, device: Device, *, tokens_max: int, context_limit: int, enabled: bool, debug: bool
    ) -> None:
        self._device = device
        self._ladder = [rung for rung in LADDER if rung <= tokens_max] if enabled else []
        self._rungs = self._ladder
        self._contexts = sorted({min(SHORT_CONTEXT, context_limit), context_limit})
        self.recordings: Recordings[PrefillKey] = Recordings(device, debug=debug)
        self.replays = self.pad_tokens = 0
        self.eager: dict[str, int] = {}

    @property
    def counters(self) -> dict[str, int]:
        """What prefill steps ran, by outcome."""
        counts = {"prefill graph: replay": self.replays, "prefill graph: pad": self.pad_tokens}
        counts |= {f"prefill graph: eager, {why}": count for why, count in self.eager.items()}
        return counts

    def record(
        self,
        work: Callable[[PrefillKey], Callable[[], None]],
        tensors: Callable[[PrefillKey], Mapping[str, torch.Tensor]],
    ) -> None:
        """Records every rung, the largest first, and keeps those that pay."""
        self._rungs = self._ladder
        keys = [PrefillKey(t, context) for t in reversed(self._rungs) for context in self._contexts]
        self.recordings.record(keys, work, tensors)
        if self._rungs and self._device.runs_behind:
            self._keep_what_pays(work(PrefillKey(self._rungs[-1], self._contexts[0])))

    def route(
        self, rows: int, tokens: int, context: int, *, read: bool, adapted: bool = False
    ) -> PrefillKey | None:
        """The recording that runs a step of these sizes; None for the Python path, counted.

        ``context`` is the longest of its rows' contexts; ``read`` says that hidden states of
        prompt tokens are read, which no recording leaves behind.
        """
        reason = self._eager_reason(rows, tokens, read) or (ADAPTED if adapted else "")
        if not reason:
            rung = next(rung for rung in self._rungs if rung >= tokens)
            key = PrefillKey(rung, next(c for c in self._contexts if c >= context))
            if key in self.recordings:
                return key
            reason = NOT_RECORDED
        self.eager[reason] = self.eager.get(reason, 0) + 1
        return None

    def run(
        self, key: PrefillKey, tokens: int, tensors: Callable[[], Mapping[str, torch.Tensor]]
    ) -> None:
        """Runs a step of so many tokens that was prepared for this key."""
        self.recordings.replay(key, tensors)
        self.replays += 1
        self.pad_tokens += key.tokens - tokens

    def release(self) -> None:
        """Drops all recordings."""
        self.recordings.release()

    def _eager_reason(self, rows: int, tokens: int, read: bool) -> str:
        if read:
            return READ
        if not self._ladder:
            return SWITCHED_OFF
        if not self._rungs or tokens > self._rungs[-1]:
            return MANY_TOKENS
        return MANY_ROWS if rows > ROWS else ""

    def _keep_what_pays(self, largest: Callable[[], None]) -> None:
        """Drops the rungs that run longer than the host takes to enqueue the largest one."""
        enqueue = self._enqueue_ms(largest)
        kept = []
        for rung in self._rungs:
            if self._replay_ms(PrefillKey(rung, self._contexts[0])) > enqueue:
                break
            kept.append(rung)
        for rung in self._rungs[len(kept) :]:
            for context in self._contexts:
                if PrefillKey(rung, context) in self.recordings:
                    self.recordings.drop(PrefillKey(rung, context))
        self._rungs = kept
        _log.info("prefill_graphs", rungs=kept, enqueue_ms=round(enqueue, 3))

    def _enqueue_ms(self, work: Callable[[], None]) -> float:
        def once() -> float:
            self._device.synchronize()
            started = time.perf_counter()
            work()
            return (time.perf_counter() - started) * 1e3

        return statistics.median(once() for _ in range(_TIMINGS))

    def _replay_ms(self, key: PrefillKey) -> float:
        graph = self.recordings.graph(key)
        if graph is None:
            return 0.0

        def once() -> float:
            self._device.synchronize()
            started = time.perf_counter()
            graph.replay()
            self._device.synchronize()
            return (time.perf_counter() - started) * 1e3

        return statistics.median(once() for _ in range(_TIMINGS))
