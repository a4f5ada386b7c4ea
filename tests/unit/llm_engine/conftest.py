"""Fakes that the engine tests share: a recording endpoint and a model that reads its KV pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import structlog
import torch
from antiphon_llm.engine.batch import BatchBuilder, StepBatch
from antiphon_llm.engine.boot import assemble_loop
from antiphon_llm.engine.cpu_runner import CpuRunner
from antiphon_llm.engine.intake import ServedModel
from antiphon_llm.engine.loop import EngineLoop
from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.engine.scheduler import Scheduler, SchedulerLimits
from antiphon_llm.engine.speculating import Speculation
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.prefix_tree import PrefixTree
from antiphon_llm.messages import Finish, Sampling, StepOutputs, Submit, TopLogprobs
from antiphon_llm.models.adapters import AdaptedTokens
from antiphon_llm.models.block import WantedRows
from antiphon_llm.speculation.drafter import Drafter

VOCABULARY = 64
END = 63


@pytest.fixture
def default_logging() -> None:
    """Every level is logged, whatever level a process's entry that was tested before has set."""
    structlog.reset_defaults()


class RecordingEndpoint:
    """The engine's end of a channel, in memory."""

    def __init__(self) -> None:
        self.inbox: list[object] = []
        self.sent: list[object] = []
        self.before_wait: Callable[[], None] = lambda: None

    def drain(self) -> list[object]:
        messages, self.inbox = self.inbox, []
        return messages

    def wait(self, timeout: float | None) -> bool:
        self.before_wait()
        return bool(self.inbox)

    def send(self, message: object) -> None:
        self.sent.append(message)

    def close(self, flush_seconds: float = 2.0) -> None: ...

    def drain_sent(self) -> list[object]:
        messages, self.sent = self.sent, []
        return messages


class PageReadingModel:
    """Keeps each token id in its KV slot and draws from what the block table leads it to.

    The next token is a hash of the row's whole context as read back from the pages, so wrong
    slots, tables, positions or recomputation change the output.
    """

    vocab_size = VOCABULARY

    def __init__(self) -> None:
        self.poisoned: dict[int, float] = {}
        """Last token id to the value that fills its logits."""

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        meta: StepBatch,
        views: Sequence[LayerCache],
        wanted: WantedRows | None = None,
        adapted: AdaptedTokens | None = None,
    ) -> torch.Tensor:
        assert wanted is None
        keys = views[0].keys
        keys[meta.write_slot] = torch.stack((ids, positions), dim=1).float().unsqueeze(1)
        hidden = torch.zeros(len(ids), 2)
        for row in range(len(meta.context_len)):
            begin, end = int(meta.query_start[row]), int(meta.query_start[row + 1])
            context = int(meta.context_len[row])
            for offset in range(begin, end):
                length = context - (end - 1 - offset)
                history = self._read(keys, meta, row, length)
                assert int(positions[offset]) == length - 1
                hidden[offset] = torch.tensor([float(next_token(history)), float(history[-1])])
        return hidden

    def prunes(self, tokens: int, wanted: int) -> bool:
        return False

    def _read(self, keys: torch.Tensor, meta: StepBatch, row: int, length: int) -> list[int]:
        places = np.arange(length)
        entries = meta.block_table[row].numpy()[places // meta.block_tokens].astype(np.int64)
        assert (entries > 0).all(), "a live token lies on the null page"
        cells = keys.numpy()[entries * meta.block_tokens + places % meta.block_tokens, 0]
        assert (cells[:, 1] == places).all()
        return cells[:, 0].astype(int).tolist()

    def head(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for index, (choice, last) in enumerate(hidden.tolist()):
            out[index] = -torch.arange(VOCABULARY).float() / VOCABULARY
            out[index, int(choice)] = 3.0
            if int(last) in self.poisoned:
                out[index] = self.poisoned[int(last)]
        return out


def next_token(history: Sequence[int]) -> int:
    """What PageReadingModel's greedy token after a context is; never END."""
    mixed = 7
    for token in history:
        mixed = (mixed * 31 + token + 1) % 1_000_003
    return mixed % END


class Engine:
    """A loop over the fake model, driven step by step."""

    def __init__(self, *, drafter: Drafter | None = None, draft_depth: int = 0,
                 residual: bool = False, **settings: int) -> None:  # fmt: skip
        values = {
            "max_rows": 4, "step_tokens": 16, "prefill_chunk": 8, "entry_tokens": 4,
            "queue_limit": 32, "entries": 64, "context_limit": 64,
            "overlap_depth": 0, "prefix_cache": 0, **settings,
        }  # fmt: skip
        entries, context_limit = values.pop("entries"), values.pop("context_limit")
        depth, caches = values.pop("overlap_depth"), values.pop("prefix_cache")
        limits = SchedulerLimits(**values)
        self.allocator = EntryAllocator(entries)
        self.tables = BlockTables(
            self.allocator,
            rows=limits.max_rows,
            entry_tokens=limits.entry_tokens,
            context_limit=context_limit,
        )
        self.model = PageReadingModel()
        tree = PrefixTree(self.allocator, fingerprint=b"fake") if caches else None
        self.scheduler = Scheduler(limits, self.tables, tree)
        self.endpoint = RecordingEndpoint()
        pages = torch.zeros((entries + 1) * limits.entry_tokens, 1, 2)
        self.builder = BatchBuilder(
            self.tables,
            step_tokens=limits.step_tokens,
            max_rows=limits.max_rows,
            slots=depth + 1,
        )
        self.runner = CpuRunner(
            self.model,
            [LayerCache(pages, pages)],
            self.builder,
            max_rows=limits.max_rows,
            overlap_depth=depth,
            draft_depth=draft_depth,
            drafter=drafter,
        )
        self.speculation = (
            Speculation(drafter, depth=draft_depth, residual=residual) if drafter else None
        )
        served = ServedModel(VOCABULARY, context_limit, frozenset({END}), draft_depth)
        self.loop: EngineLoop = assemble_loop(
            self.endpoint, self.scheduler, self.runner, served, overlap_depth=depth,
            speculation=self.speculation,
        )  # fmt: skip
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, Finish] = {}
        self.admitted: list[str] = []
        self.other: list[object] = []
        self.prompt_logprobs: dict[str, list[TopLogprobs | None]] = {}

    def send(self, message: object) -> None:
        self.endpoint.inbox.append(message)

    def submit(self, request_id: str, prompt: Sequence[int], **fields: object) -> None:
        """A greedy request by default; Submit and Sampling fields by name."""
        own = {key: fields.pop(key) for key in ("deadline", "interactive", "choice", "adapter")
               if key in fields}  # fmt: skip
        sampling = Sampling(**{"temperature": 0.0, "max_tokens": 8, **fields})
        self.send(Submit(request_id, list(prompt), sampling, **own))

    def step(self) -> None:
        """Takes messages and runs one step, as the loop does, and collects what was sent."""
        self.loop.take_messages()
        if self.loop.busy:
            self.loop.step()
        self.collect()
        self.scheduler.check_integrity()

    def run(self, limit: int = 10_000) -> None:
        """Steps until nothing is live."""
        self.step()
        for _ in range(limit):
            if not self.loop.busy:
                return
            self.step()
        raise AssertionError("requests are still live")

    def collect(self) -> None:
        """Sorts what the engine has sent so far."""
        for sent in (self.loop.outbox.flush(), *self.endpoint.drain_sent()):
            if isinstance(sent, StepOutputs):
                self._take(sent)
            elif sent is not None:
                self.other.append(sent)

    def _take(self, message: StepOutputs) -> None:
        for request_id, token in zip(message.request_ids, message.token_ids, strict=True):
            assert request_id not in self.finished, "a token after the terminal"
            self.outputs.setdefault(request_id, []).append(token)
        for finish in message.finished:
            assert finish.request_id not in self.finished, "two terminals"
            self.finished[finish.request_id] = finish
        self.admitted.extend(message.admitted)
        self.prompt_logprobs.update(message.prompt_logprobs)


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """The fake model's greedy continuation."""
    history = list(prompt)
    for _ in range(count):
        history.append(next_token(history))
    return history[len(prompt) :]


@pytest.fixture
def engine_type() -> type[Engine]:
    return Engine


@pytest.fixture
def endpoint_type() -> type[RecordingEndpoint]:
    return RecordingEndpoint


@pytest.fixture
def greedy_reference() -> Callable[[Sequence[int], int], list[int]]:
    return greedy


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261129)
