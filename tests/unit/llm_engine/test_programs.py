"""Decode steps as recorded programs against the path that they were recorded from."""

from __future__ import annotations

from pathlib import Path

import antiphon_kernels
import numpy as np
import pytest
import torch
from antiphon_core.memory import resident_bytes
from antiphon_kernels.cpu import library
from antiphon_llm.engine.batch import BatchBuilder, StepBatch
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.models.programs import STALE, UNSTABLE
from antiphon_llm.models.registry import build_model
from antiphon_nn.checkpoint import open_checkpoint
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM

ENTRIES, ENTRY_TOKENS, CONTEXT, ROWS, VOCABULARY = 160, 16, 256, 8, 160
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": CONTEXT, "attn_implementation": "eager",
}  # fmt: skip

pytestmark = pytest.mark.skipif(library.native() is None, reason="programs are native calls")


class Served:
    """A model with pages and requests of its own."""

    def __init__(self, path: Path) -> None:
        self.model = build_model(open_checkpoint(path))
        self.programs = self.model.programs
        self._tables = BlockTables(
            EntryAllocator(ENTRIES), rows=ROWS, entry_tokens=ENTRY_TOKENS, context_limit=CONTEXT
        )
        self._builder = BatchBuilder(self._tables, step_tokens=64, max_rows=ROWS)
        slots = (ENTRIES + 1) * ENTRY_TOKENS
        self.views = [
            LayerCache(
                torch.zeros(slots, layer.kv_heads, layer.head_dim),
                torch.zeros(slots, layer.kv_heads, layer.head_dim),
            )
            for layer in self.model.spec.layers
        ]
        self.requests = [self._prefilled(index) for index in range(ROWS)]

    def _prefilled(self, index: int) -> Request:
        prompt = [(7 * place + index) % VOCABULARY for place in range(17 + 5 * index)]
        request = Request(str(index), 1, prompt, len(prompt), 1, Timings(0.0))
        request.row = self._tables.open()
        request.move(State.PREFILLING)
        self.feed([(request, len(prompt))])
        request.move(State.DECODING)
        return request

    def batch(self, parts: list[tuple[Request, int]]) -> StepBatch:
        plan = StepPlan()
        for request, count in parts:
            self._tables.extend(request.row, request.written + count)
            plan.add(request, count)
        return self._builder.build(plan)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        with torch.inference_mode():
            return self.model.forward(batch.input_ids, batch.positions, batch, self.views).clone()

    def feed(self, parts: list[tuple[Request, int]]) -> torch.Tensor:
        hidden = self.forward(self.batch(parts))
        for request, count in parts:
            request.written += count
        return hidden

    def verify(self, rows: list[int], drafts: tuple[int, ...]) -> torch.Tensor:
        """Hidden states (R * W, H) of the last token of each row and the drafts behind it."""
        plan = StepPlan()
        for row in rows:
            request = self.requests[row]
            request.written -= 1
            self._tables.extend(request.row, request.written + 1 + len(drafts))
            plan.add(request, 1 + len(drafts), drafts)
            request.written += 1
        return self.forward(self._builder.build(plan))

    def decode(self, rows: list[int], token: int = 9) -> torch.Tensor:
        """Hidden states (R, H) of one new token for each of these requests, in this order."""
        chosen = [self.requests[row] for row in rows]
        for request in chosen:
            request.tokens.append((token + 11 * len(request.tokens)) % VOCABULARY)
        return self.feed([(request, 1) for request in chosen])


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(8)
    oracle = (
        LlamaForCausalLM(LlamaConfig(**SHAPE))
        if request.param == "llama"
        else Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=24))
    )
    with torch.no_grad():
        for parameter in oracle.model.layers.parameters():
            parameter.mul_(4.0)
    path = tmp_path_factory.mktemp(request.param)
    oracle.save_pretrained(path)
    return path


@pytest.fixture
def served(checkpoint: Path) -> Served:
    return Served(checkpoint)


def test_replays_equal_the_path_for_any_rows(
    checkpoint: Path, served: Served, rng: np.random.Generator
) -> None:
    plain = Served(checkpoint)
    plain.programs.enabled = False
    for step in range(70):
        count = step % ROWS + 1
        rows = rng.permutation(ROWS)[:count].tolist()
        token = int(rng.integers(0, VOCABULARY))
        assert torch.equal(served.decode(rows, token), plain.decode(rows, token)), (step, rows)
        for mine, theirs in zip(served.views, plain.views, strict=True):
            assert torch.equal(mine.keys, theirs.keys)
            assert torch.equal(mine.values, theirs.values)
    assert served.programs.eager == {"recorded": ROWS}
    assert served.programs.replays == 70 - ROWS
    assert plain.programs.replays == 0


def test_rows_with_drafts_have_programs_of_their_own(
    checkpoint: Path, served: Served, rng: np.random.Generator
) -> None:
    plain = Served(checkpoint)
    plain.programs.enabled = False
    for step in range(40):
        rows = rng.permutation(ROWS)[: step % 3 + 1].tolist()
        drafts = tuple(rng.integers(-1, VOCABULARY, step % 4 + 1).tolist())
        assert torch.equal(served.verify(rows, drafts), plain.verify(rows, drafts)), step
        assert torch.equal(served.decode(rows), plain.decode(rows))
    assert served.programs.eager == {"recorded": 3 * 4 + 3}
    assert served.programs.replays == 80 - 15


def test_a_wide_prompt_between_leaves_programs_valid(checkpoint: Path, served: Served) -> None:
    plain = Served(checkpoint)
    plain.programs.enabled = False
    for one in (served, plain):
        one.decode([3])
        one.model.forward(
            torch.zeros(300, dtype=torch.int64), *_one_long_row(one.batch([]), 300), one.views
        )
    assert torch.equal(served.decode([3]), plain.decode([3]))
    assert served.programs.replays == 1


def _one_long_row(batch: StepBatch, tokens: int) -> tuple[torch.Tensor, StepBatch]:
    """Positions and metadata of a row over the last pages, which no request holds."""
    tokens_of_row = torch.arange(tokens) % CONTEXT
    first = ENTRIES - CONTEXT // ENTRY_TOKENS
    return tokens_of_row.int(), StepBatch(
        input_ids=batch.input_ids,
        positions=batch.positions,
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        context_len=torch.tensor([tokens], dtype=torch.int32),
        block_table=torch.arange(first - 4, ENTRIES, dtype=torch.int32)[None],
        write_slot=(first - 4) * ENTRY_TOKENS + torch.arange(tokens),
        sample_index=batch.sample_index,
        block_tokens=ENTRY_TOKENS,
        max_query=tokens,
        max_context=tokens,
        step_class=batch.step_class,
    )


def test_moved_caches_are_refused(checkpoint: Path, served: Served) -> None:
    plain = Served(checkpoint)
    plain.programs.enabled = False
    served.decode([0, 1])
    plain.decode([0, 1])
    old = served.views
    served.views = [LayerCache(view.keys.clone(), view.values.clone()) for view in old]
    before = [view.keys.clone() for view in old]
    for _ in range(3):
        assert torch.equal(served.decode([0, 1]), plain.decode([0, 1]))
    assert served.programs.eager == {"recorded": 2, UNSTABLE: 1}
    assert served.programs.replays == 1
    assert all(torch.equal(view.keys, keys) for view, keys in zip(old, before, strict=True))


def test_moved_metadata_is_refused(served: Served) -> None:
    served.decode([2])
    request = served.requests[2]
    request.tokens.append(5)
    batch = served.batch([(request, 1)])
    expected = served.forward(batch)
    moved = served.model.forward(batch.input_ids, batch.positions.clone(), batch, served.views)
    assert torch.equal(moved, expected)
    assert served.programs.eager == {"recorded": 1, UNSTABLE: 1}


def test_other_threads_record_anew(served: Served) -> None:
    before = antiphon_kernels.threads()
    served.decode([4])
    antiphon_kernels.set_threads(before + 1)
    try:
        for _ in range(3):
            served.decode([4])
    finally:
        antiphon_kernels.set_threads(before)
    assert served.programs.eager == {"recorded": 2, STALE: 1}
    assert served.programs.replays == 1


def test_without_native_kernels_every_step_takes_the_path(served: Served) -> None:
    with library.use("reference"):
        for _ in range(2):
            served.decode([1])
    assert served.programs.eager == {"recorded": 1, "no native kernels": 1}
    assert served.programs.fallbacks == {"decode_program: no native kernels": 1}
    assert served.programs.replays == 0


def test_bad_data_raises_what_the_path_raises(served: Served) -> None:
    served.decode([0])
    request = served.requests[0]
    request.tokens.append(5)
    batch = served.batch([(request, 1)])
    batch.positions[0] = 1_000_000
    with pytest.raises(IndexError, match="rope: a position lies outside"):
        served.forward(batch)
    assert served.programs.replays == 0


def test_memory_stays_flat(served: Served) -> None:
    request = served.requests[0]
    request.tokens.append(5)
    batch = served.batch([(request, 1)])
    for _ in range(50):
        served.forward(batch)
    before = resident_bytes()
    for _ in range(2000):
        served.forward(batch)
    assert resident_bytes() - before < 1 << 20
