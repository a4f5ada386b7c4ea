"""Prefill steps as recordings: the states of the Python path, and the routes that lead there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from antiphon_llm.engine.cuda.device import Graph, HostDevice
from antiphon_llm.engine.cuda.prefill_graphs import (
    MANY_ROWS,
    MANY_TOKENS,
    NOT_RECORDED,
    READ,
    SWITCHED_OFF,
    PrefillGraphs,
    PrefillKey,
)
from antiphon_llm.engine.cuda.prefill_steps import PrefillSteps
from antiphon_llm.engine.cuda.prompt_outputs import PromptOutputs
from antiphon_llm.engine.cuda.readback import Readback
from antiphon_llm.engine.cuda.runner import RunnerOptions
from antiphon_llm.engine.cuda.tables import DeviceTables
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.runner import layer_caches
from antiphon_llm.engine.uploads import StepUploads
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.messages import Sampling
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_llm.sampler.row import SamplerRow
from antiphon_nn.checkpoint import open_checkpoint
from transformers import Qwen3Config, Qwen3ForCausalLM

ENTRIES, ENTRY_TOKENS, CONTEXT, ROWS, STEP_TOKENS, VOCABULARY = 120, 4, 96, 10, 70, 160
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": CONTEXT,
}  # fmt: skip


class Prompts:
    """Rows that feed their prompts through prefill steps, with recordings or without."""

    def __init__(
        self,
        model: Decoder,
        lengths: Sequence[int],
        *,
        graphs: bool,
        device: HostDevice | None = None,
    ) -> None:
        device = device or HostDevice()
        self.tables = BlockTables(
            EntryAllocator(ENTRIES), rows=ROWS, entry_tokens=ENTRY_TOKENS, context_limit=CONTEXT
        )
        self.pool = KvPool(model.kv_fields(ENTRY_TOKENS), entries=ENTRIES)
        options = RunnerOptions(max_rows=ROWS, step_tokens=STEP_TOKENS, graphs=graphs, debug=graphs)
        self.device_tables = DeviceTables(self.tables, device.device, step_tokens=STEP_TOKENS)
        self.uploads = StepUploads(device, slots=1, mode="packed")
        views = layer_caches(model.kv_rows, self.pool)
        self.steps = PrefillSteps(
            device, model, views, self.tables, self.device_tables, self.uploads, options
        )
        targets = self.device_tables.targets
        self.table_uploads = self.uploads.group("tables", targets)
        self.whole_uploads = self.uploads.group("whole", self.device_tables.whole_targets)
        self.readback = Readback(device, 1 << 12)
        if graphs:
            self.uploads.open()
            self.steps.stage_placeholders()
            self.uploads.seal()
            with torch.inference_mode():
                self.steps.record()
        random = torch.Generator().manual_seed(7)
        self.requests = [self._open(length, random) for length in lengths]

    def step(self, counts: Sequence[int]) -> torch.Tensor:
        """Feeds so many tokens of each row; states of those whose prompt ends."""
        plan = StepPlan()
        for request, count in zip(self.requests, counts, strict=True):
            if count:
                plan.add(request, count)
                self.tables.extend(request.row, request.written + count)
        self.uploads.open()
        owners = [row.request.row for row in plan.rows]
        self.device_tables.prepare(
            owners, uploads=self.table_uploads, whole_uploads=self.whole_uploads
        )
        with torch.inference_mode():
            prepared = self.steps.prepare(plan.rows)
            self.steps.publish()
            self.table_uploads.publish()
            self.whole_uploads.publish()
            self.device_tables.publish()
            states = self.steps.run(prepared, PromptOutputs(), self.readback).clone()
        self.uploads.seal()
        for row in plan.rows:
            row.request.written = row.end
        return states

    def _open(self, length: int, random: torch.Generator) -> Request:
        tokens = torch.randint(0, VOCABULARY, (length,), generator=random).tolist()
        sampler = SamplerRow(
            Sampling(), choice=0, prompt_ids=tokens, end_ids=(), vocabulary=VOCABULARY
        )
        request = Request("r", 1, tokens, length, 4, Timings(0.0), sampler=sampler)
        request.row = self.tables.open()
        request.move(State.PREFILLING)
        return request


@pytest.fixture(scope="module", params=[4, 64], ids=["last layer pruned", "whole"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("qwen3")
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(path)
    return build_model(open_checkpoint(path), fixed_tokens=request.param)


def test_recorded_steps_leave_the_states_of_the_python_path(model: Decoder) -> None:
    """Rows that begin, go on and end, in every step another number of tokens."""
    lengths = (30, 9, 41, 1, 60)
    feeds = [(7, 9, 20, 0, 3), (5, 0, 1, 1, 40), (18, 0, 0, 0, 1), (0, 0, 20, 0, 16)]
    plain, recorded = (Prompts(model, lengths, graphs=on) for on in (False, True))
    for counts in feeds:
        expected, states = plain.step(counts), recorded.step(counts)
        assert states.shape == expected.shape
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-5)
    graphs = recorded.steps.graphs
    assert graphs.replays == len(feeds) and not graphs.eager and graphs.pad_tokens > 0
    for own, other in zip(recorded.pool.views.values(), plain.pool.views.values(), strict=True):
        # The null entry is where padding goes.
        torch.testing.assert_close(own[1:], other[1:], rtol=0, atol=1e-5)


class TimedDevice(HostDevice):
    """Runs behind, so that the Python of the largest rung is timed after it was recorded."""

    runs_behind = True


def test_recorded_states_lie_where_the_recordings_leave_them(
    model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph writes where it was recorded; what ran afterwards must not have moved the place."""
    clock = "antiphon_llm.engine.cuda.prefill_graphs.time.perf_counter"
    monkeypatch.setattr(clock, lambda: 0.0)  # Every rung pays
    prompts = Prompts(model, (64, 3), graphs=True, device=TimedDevice())
    places = set()
    for counts in ((64, 0), (0, 3)):
        states = prompts.steps._kept()
        prompts.step(counts)
        places |= {states.data_ptr(), prompts.steps._kept().data_ptr()}
    assert len(places) == 1 and prompts.steps.graphs.replays == 2


def test_a_step_that_no_recording_fits_takes_the_python_path(model: Decoder) -> None:
    many = Prompts(model, [5] * 9, graphs=True)
    assert len(many.step([5] * 9)) == 9
    scored = Prompts(model, [5], graphs=True)
    scored.requests[0].prompt_logprobs = 0
    scored.step([5])
    assert many.steps.graphs.eager == {MANY_ROWS: 1} and scored.steps.graphs.eager == {READ: 1}


def test_routes() -> None:
    graphs = PrefillGraphs(
        HostDevice(), tokens_max=64, context_limit=2000, enabled=True, debug=False
    )
    graphs.record(lambda key: lambda: None, lambda key: {})
    assert graphs.route(1, 1, 1, read=False) == PrefillKey(16, 1024)
    assert graphs.route(8, 17, 1024, read=False) == PrefillKey(32, 1024)
    assert graphs.route(8, 64, 1025, read=False) == PrefillKey(64, 2000)
    assert graphs.route(8, 65, 1025, read=False) is None
    off = PrefillGraphs(HostDevice(), tokens_max=64, context_limit=99, enabled=False, debug=False)
    off.record(lambda key: lambda: None, lambda key: {})
    assert off.route(1, 1, 1, read=False) is None
    assert graphs.eager == {MANY_TOKENS: 1} and off.eager == {SWITCHED_OFF: 1}


class SlowReplays(HostDevice):
    """A device whose graphs run as long as told, behind a host that enqueues at once."""

    runs_behind = True

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self._clock = clock

    def record(self, work: object) -> Graph:
        clock, seconds = self._clock, work.seconds  # type: ignore[attr-defined]

        class Replay:
            def replay(self) -> None:
                clock[0] += seconds

        return Replay()


class Work:
    """Work of so many tokens: 2 us each on the device, 100 us to enqueue."""

    def __init__(self, key: PrefillKey, clock: list[float]) -> None:
        self.seconds = key.tokens * 2e-6
        self._clock = clock

    def __call__(self) -> None:
        self._clock[0] += 1e-4


def test_only_rungs_that_the_host_cannot_outrun_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(
        "antiphon_llm.engine.cuda.prefill_graphs.time.perf_counter", lambda: clock[0]
    )
    device = SlowReplays(clock)
    graphs = PrefillGraphs(device, tokens_max=512, context_limit=64, enabled=True, debug=False)
    graphs.record(lambda key: Work(key, clock), lambda key: {})
    assert graphs.route(1, 48, 48, read=False) == PrefillKey(48, 64)
    assert graphs.route(1, 49, 49, read=False) is None, "64 tokens run 128 us"
    assert graphs.eager == {MANY_TOKENS: 1}


def test_a_refused_rung_is_eager(model: Decoder) -> None:
    class Full(HostDevice):
        def record(self, work: object) -> Graph:
            raise torch.OutOfMemoryError("full")

    graphs = PrefillGraphs(Full(), tokens_max=16, context_limit=64, enabled=True, debug=False)
    graphs.record(lambda key: lambda: None, lambda key: {})
    assert graphs.route(1, 3, 3, read=False) is None and graphs.eager == {NOT_RECORDED: 1}
    assert list(graphs.recordings.refused) == [PrefillKey(16, 64)]


def test_recording_fixes_the_memory_of_every_step(tmp_path: Path) -> None:
    """A wider step than any recorded one must not move what the recordings work in."""
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(tmp_path)
    model = build_model(open_checkpoint(tmp_path), fixed_tokens=4)
    Prompts(model, (), graphs=True)
    recorded = model.workspace.views(16).hidden.data_ptr()
    assert model.workspace.views(STEP_TOKENS).hidden.data_ptr() == recorded
