"""The device runner on a CUDA device: recordings, uploads and overlap against plain steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from antiphon_llm.engine.cuda.boot import build
from antiphon_llm.engine.cuda.device import CudaDevice, open_device
from antiphon_llm.engine.cuda.runner import DeviceRunner, RunnerOptions
from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.request import Request, State, Timings
from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.engine.uploads import StepUploads
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.messages import EngineConfig, Sampling
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_llm.sampler.row import SamplerRow

from bench.random_qwen3 import Qwen3Shape, RandomCheckpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, ENTRY_TOKENS, CONTEXT, STEP_TOKENS, DEPTH = 40, 16, 512, 512, 4
TINY = Qwen3Shape("tiny", 256, 512, 3, 4, 2, tied=True, head_dim=64, vocabulary=2048)
ADJUSTED = {"presence_penalty": 0.6, "logit_bias": {5: 3.0}, "min_tokens": 3}


@pytest.fixture(scope="module")
def model() -> Decoder:
    device = torch.device("cuda")
    checkpoint = RandomCheckpoint(TINY, device, torch.bfloat16)
    fixed = ROWS * (1 + DEPTH)
    built = build_model(checkpoint, device=device, dtype=torch.bfloat16, fixed_tokens=fixed)
    # Wide logits, so that two ways to sum a product seldom choose another token.
    built._embedding.weight.mul_(20.0)
    return built


class Steps:
    """Drives a runner without a scheduler: prompts first, then chosen rows one token on."""

    def __init__(self, model: Decoder, **changes: object) -> None:
        options = {"max_rows": ROWS, "step_tokens": STEP_TOKENS, "debug": True, **changes}
        self.tables = BlockTables(
            EntryAllocator(ROWS * 12), rows=ROWS, entry_tokens=ENTRY_TOKENS, context_limit=CONTEXT
        )
        device = open_device(model.device)
        pool = KvPool(model.kv_fields(ENTRY_TOKENS), entries=ROWS * 12, device=model.device)
        self.views = [
            LayerCache(
                pool.views[f"{index}.keys"].flatten(0, 1),
                pool.views[f"{index}.values"].flatten(0, 1),
            )
            for index in range(len(model.spec.layers))
        ]
        self.runner = DeviceRunner(device, model, self.views, self.tables, RunnerOptions(**options))
        self.runner.record_graphs()
        self.requests: list[Request] = []

    def prefill(self, prompts: Sequence[list[int]], **sampling: object) -> None:
        for prompt in prompts:
            settings = Sampling(**{"temperature": 0.0, "seed": len(self.requests), **sampling})
            row = SamplerRow(
                settings, choice=0, prompt_ids=prompt, end_ids=[1], vocabulary=TINY.vocabulary
            )
            request = Request("r", 1, list(prompt), len(prompt), 99, Timings(0.0), sampler=row)
            request.row = self.tables.open()
            request.move(State.PREFILLING)
            self.requests.append(request)
            self._take(self.runner.launch(self.plan([(request, len(prompt))])))
            request.move(State.DECODING)

    def plan(self, parts: Sequence[tuple[Request, int]]) -> StepPlan:
        plan = StepPlan()
        for request, count in parts:
            self.tables.extend(request.row, request.written + count)
            plan.add(request, count)
        return plan

    def decode(self, rows: Sequence[int]) -> list[int]:
        """One more token of each of these requests."""
        plan = self.plan([(self.requests[row], 1) for row in rows])
        return self._take(self.runner.launch(plan))

    def _take(self, flight: object) -> list[int]:
        self.runner.finish(flight)
        result = self.runner.collect(flight)
        for row in flight.plan.rows:
            row.request.written = row.end
        for row, draws in result.draws:
            assert not any(drawn.error for drawn in draws)
            row.request.written = row.first_draw + len(draws) - 1
            row.request.tokens += [drawn.token for drawn in draws]
        return [draws[-1].token for _, draws in result.draws]

    def verify(self, drafts: Sequence[tuple[int, ...]]) -> None:
        """A step of the first requests with these drafts, all equally many."""
        plan = StepPlan()
        for request, proposed in zip(self.requests, drafts, strict=False):
            self.tables.extend(request.row, request.written + 1 + len(proposed))
            plan.add(request, 1 + len(proposed), proposed)
        self._take(self.runner.launch(plan))

    def logits(self, rows: int) -> torch.Tensor:
        return self.runner._draws.logits[:rows].clone()


@pytest.fixture
def prompts(rng: np.random.Generator) -> list[list[int]]:
    return [
        rng.integers(2, TINY.vocabulary, int(rng.integers(1, 120))).tolist() for _ in range(ROWS)
    ]


@pytest.fixture(autouse=True)
def no_work_left() -> Iterator[None]:
    yield
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def test_a_replay_equals_the_eager_step_on_every_rung(
    model: Decoder, prompts: list[list[int]], rng: np.random.Generator
) -> None:
    recorded, eager = Steps(model), Steps(model, graphs=False)
    for steps in (recorded, eager):
        steps.prefill(prompts)
    for count in [*range(1, ROWS + 1), 3, 40, 1]:
        rows = rng.permutation(ROWS)[:count].tolist()
        for index in rows:
            recorded.requests[index].tokens[:] = eager.requests[index].tokens
        recorded.decode(rows)
        eager.decode(rows)
        error = (recorded.logits(count) - eager.logits(count)).norm()
        assert error <= 2e-2 * eager.logits(count).norm(), count
    assert recorded.runner.graphs.replays == ROWS + 3
    assert not recorded.runner.graphs.eager and not recorded.runner.graphs_refused
    assert eager.runner.graphs.eager == {"off": ROWS + 3}


def test_replayed_windows_equal_eager_ones(
    model: Decoder, prompts: list[list[int]], rng: np.random.Generator
) -> None:
    recorded = Steps(model, draft_depth=DEPTH)
    eager = Steps(model, draft_depth=DEPTH, graphs=False)
    for steps in (recorded, eager):
        steps.prefill(prompts)
    counts = [1, 2, 3, 8, 17, ROWS, 1]
    for count in counts:
        for one, other in zip(recorded.requests, eager.requests, strict=True):
            one.tokens[:], one.written = other.tokens, other.written
        # Refused as good as always, so that both go on with the same text.
        drafts = [tuple(rng.integers(2, TINY.vocabulary, DEPTH).tolist()) for _ in range(count)]
        recorded.verify(drafts)
        eager.verify(drafts)
        places = count * (1 + DEPTH)
        error = (recorded.logits(places) - eager.logits(places)).norm()
        assert error <= 2e-2 * eager.logits(places).norm(), count
        recorded.verify([proposed[:2] for proposed in drafts])
        eager.verify([proposed[:2] for proposed in drafts])
    assert recorded.runner.graphs.replays == 2 * len(counts), "narrower windows are padded"
    assert not recorded.runner.graphs.eager and not recorded.runner.graphs_refused


def test_drafts_change_no_greedy_text_but_at_near_ties(
    model: Decoder, prompts: list[list[int]], rng: np.random.Generator
) -> None:
    rows, windows = 6, 15
    plain = Steps(model)
    plain.prefill(prompts[:rows])
    margins: list[list[float]] = []
    for _ in range(windows * (1 + DEPTH)):
        plain.decode(range(rows))
        best = plain.logits(rows).topk(2).values
        margins.append((best[:, 0] - best[:, 1]).tolist())
    steps = Steps(model, draft_depth=DEPTH)
    steps.prefill(prompts[:rows])
    answers = [request.tokens for request in plain.requests]
    accepted = 0
    for number in range(windows):
        before = [len(request.tokens) for request in steps.requests]
        depth = 2 if number % 3 == 0 else DEPTH
        steps.verify(
            [
                tuple(answer[at + place] if rng.random() < 0.8 else 2 for place in range(depth))
                for answer, at in zip(answers, before, strict=True)
            ]
        )
        for row, (request, answer) in enumerate(zip(steps.requests, answers, strict=True)):
            accepted += len(request.tokens) - before[row] - 1
            for at in range(before[row], len(request.tokens)):
                if request.tokens[at] != answer[at]:
                    # The first token came from the prompt's end, the others from decode steps.
                    assert margins[at - len(prompts[row]) - 1][row] < 1e-2
                    request.tokens[at:], request.written = [answer[at]], at
                    break
    assert accepted > windows * rows


@pytest.mark.parametrize("depth", [0, DEPTH])
def test_masked_rows_draw_allowed_ids_and_leave_the_others_alone(
    model: Decoder, prompts: list[list[int]], rng: np.random.Generator, depth: int
) -> None:
    allowed = sorted(rng.choice(TINY.vocabulary, 300, replace=False).tolist())
    kinds: list[dict[str, object]] = [
        {"temperature": 0.9, "top_k": 40},
        {"temperature": 1.2, "allowed_token_ids": allowed},
        {"temperature": 0.0, "allowed_token_ids": allowed, "presence_penalty": 1.5},
        {"temperature": 1.0, "presence_penalty": 0.7},
        {"temperature": 0.8, "top_p": 0.9, "allowed_token_ids": allowed[:3]},
    ]
    mixed, plain = Steps(model, draft_depth=depth), Steps(model, draft_depth=depth)
    for place, kind in enumerate(kinds):
        mixed.prefill(prompts[place : place + 1], **{"seed": place, **kind})
        unmasked = {name: value for name, value in kind.items() if name != "allowed_token_ids"}
        plain.prefill(prompts[place : place + 1], **{"seed": place, **unmasked})
    for _ in range(12):
        drafts = [tuple(rng.integers(2, TINY.vocabulary, depth).tolist()) for _ in kinds]
        for steps in (mixed, plain):
            steps.verify(drafts)
    for place, (kind, mine, other) in enumerate(
        zip(kinds, mixed.requests, plain.requests, strict=True)
    ):
        new = mine.tokens[len(prompts[place]) :]
        if "allowed_token_ids" in kind:
            assert set(new) <= set(kind["allowed_token_ids"])
        else:
            assert new == other.tokens[len(prompts[place]) :]
    assert mixed.runner.counters["draw: masked rows"] >= 36


def test_logits_equal_the_references_on_the_host(prompts: list[list[int]]) -> None:
    """Every kernel of a step together, in prefill and at row counts of each kind of product."""
    served = []
    for name in ("cuda", "cpu"):
        # The same seed on one device: both models read equal weights in the same order.
        checkpoint = RandomCheckpoint(TINY, torch.device("cpu"), torch.bfloat16)
        own = build_model(checkpoint, device=name, dtype=torch.bfloat16, fixed_tokens=ROWS)
        served.append(Steps(own, graphs=name == "cuda"))
    device, host = served
    for prompt in prompts[:24]:
        for steps in served:
            steps.prefill([prompt])
        _assert_near(device.logits(1), host.logits(1))
    for count in (1, 2, 5, 16, 17, 24):
        for one, other in zip(device.requests, host.requests, strict=True):
            one.tokens[:] = other.tokens
        device.decode(range(count))
        host.decode(range(count))
        _assert_near(device.logits(count), host.logits(count))


def _assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Both round each activation to bf16, in another order of sums."""
    error = (actual.cpu() - expected.cpu()).norm() / expected.cpu().norm()
    assert error < 2e-2


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.8, "top_k": 50, "top_p": 0.95}, {"temperature": 0.7, **ADJUSTED}]
)
def test_packed_uploads_equal_direct_ones(
    model: Decoder, prompts: list[list[int]], sampling: dict[str, object]
) -> None:
    drawn = []
    for mode in ("packed", "direct"):
        steps = Steps(model, upload_mode=mode)
        steps.prefill(prompts[:7], **sampling)
        drawn.append([steps.decode(range(7)) for _ in range(30)])
        # Without the null entry, where padding goes.
        kept = [view.keys[ENTRY_TOKENS:] for view in steps.views]
        drawn[-1].append([keys.float().sum().item() for keys in kept])
    assert drawn[0] == drawn[1]


def test_overlap_draws_the_same_tokens(model: Decoder, prompts: list[list[int]]) -> None:
    plain = Steps(model, overlap_depth=0)
    plain.prefill(prompts[:5], temperature=0.9, top_k=40)
    expected = [plain.decode(range(5)) for _ in range(40)]
    steps = Steps(model, overlap_depth=1)
    steps.prefill(prompts[:5], temperature=0.9, top_k=40)
    ahead, drawn = None, []
    for _ in range(40):
        flight = steps.runner.launch(steps.plan([(request, 1) for request in steps.requests]))
        for request in steps.requests:
            request.written += 1
            request.ahead = 1
        if ahead is not None:
            drawn.append(_committed(steps, ahead))
        ahead = flight
    drawn.append(_committed(steps, ahead))
    assert drawn == expected


def _committed(steps: Steps, flight: object) -> list[int]:
    draws = steps.runner.collect(flight).draws
    for row, (one,) in draws:
        row.request.tokens.append(one.token)
    return [one.token for _, (one,) in draws]


def test_decode_steps_never_stop_the_host(model: Decoder, prompts: list[list[int]]) -> None:
    steps = Steps(model)
    steps.prefill(prompts[:9], temperature=0.8, top_k=50, top_p=0.95)
    steps.decode(range(9))
    for _ in range(50):
        plan = steps.plan([(request, 1) for request in steps.requests])
        torch.cuda.set_sync_debug_mode("error")
        try:
            flight = steps.runner.launch(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        steps._take(flight)


def test_a_slot_waits_for_the_copies_that_read_it() -> None:
    """The device is kept busy, so that a slot reused too early would send the next contents."""
    device = CudaDevice()
    fixed = {
        "ids": torch.zeros(1000, dtype=torch.int32, device="cuda"),
        "slots": torch.zeros(77, dtype=torch.int64, device="cuda"),
        "settings": torch.zeros(333, dtype=torch.uint8, device="cuda"),
    }
    uploads = StepUploads(device, slots=2, mode="packed")
    group = uploads.group("decode", fixed)
    seen = []
    for step in range(1, 9):
        torch.cuda._sleep(20_000_000)
        uploads.open()
        for name, count in (("ids", 900 + step), ("slots", 70), ("settings", 300 + step)):
            group.take(name, count)[:] = step
        group.publish()
        uploads.seal()
        seen.append([tensor.clone() for tensor in fixed.values()])
    torch.cuda.synchronize()
    for step, (ids, slots, settings) in enumerate(seen, start=1):
        assert (ids[: 900 + step] == step).all() and not ids[900 + step :].any()
        assert (slots[:70] == step).all() and not slots[70:].any()
        assert (settings[: 300 + step] == step).all() and not settings[300 + step :].any()


def test_a_sleep_gives_memory_back_and_text_is_the_same_after_it(
    prompts: list[list[int]],
) -> None:
    device = torch.device("cuda")
    checkpoint = RandomCheckpoint(TINY, device, torch.bfloat16)
    own = build_model(checkpoint, device=device, dtype=torch.bfloat16, fixed_tokens=ROWS)
    steps = Steps(own)
    steps.prefill(prompts[:4])
    before = [steps.decode(range(4)) for _ in range(12)]
    held = torch.cuda.memory_allocated()
    released = steps.runner.sleep()
    cache = 2 * sum(view.keys.nbytes for view in steps.views)
    assert released >= own.weight_bytes + cache
    assert torch.cuda.memory_allocated() <= held - own.weight_bytes - cache
    steps.runner.wake()
    for request in steps.requests:
        steps.tables.close(request.row)
    steps.requests.clear()
    steps.prefill(prompts[:4])
    assert [steps.decode(range(4)) for _ in range(12)] == before
    assert not steps.runner.graphs.eager


def test_a_built_engine_keeps_to_its_share() -> None:
    device = torch.device("cuda")
    free, total = torch.cuda.mem_get_info()
    used = (total - free) / total
    config = EngineConfig(
        model_path="tiny", device="cuda", max_rows=64, step_tokens=1024, prefill_chunk=512,
        context_limit=0, kv_entries=0, memory_share=used + 0.05, overlap_depth=1,
    )  # fmt: skip
    huge = replace(TINY, layers=8, kv_heads=4)
    built = build(
        config, RandomCheckpoint(huge, device, torch.bfloat16), lambda name: nullcontext()
    )
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    assert total - free <= config.memory_share * total
    assert built.pool.bytes > 0.5 * 0.05 * total, "the pool gets most of what is left"
    assert built.fallbacks() == {}
    built.runner.close()


def test_a_padded_rung_costs_little_more_than_an_exact_one(
    model: Decoder, prompts: list[list[int]]
) -> None:
    steps = Steps(model)
    steps.prefill(prompts)

    def median(rows: int) -> float:
        times = []
        for _ in range(30):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            plan = steps.plan([(request, 1) for request in steps.requests[:rows]])
            torch.cuda.synchronize()
            start.record()
            flight = steps.runner.launch(plan)
            end.record()
            steps._take(flight)
            times.append(start.elapsed_time(end))
        return statistics.median(times)

    median(16)
    assert median(13) <= 1.25 * median(16)
