"""The device runner on the host: equal to the CPU runner, token for token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from antiphon_kernels.sample import RowSettings
from antiphon_llm.engine.batch import BatchBuilder
from antiphon_llm.engine.boot import assemble_loop
from antiphon_llm.engine.cpu_runner import CpuRunner
from antiphon_llm.engine.cuda.device import HostDevice
from antiphon_llm.engine.cuda.runner import DeviceRunner, RunnerOptions
from antiphon_llm.engine.intake import ServedModel
from antiphon_llm.engine.runner import LayerCache
from antiphon_llm.engine.scheduler import Scheduler, SchedulerLimits
from antiphon_llm.engine.speculating import Speculation
from antiphon_llm.kvcache.allocator import EntryAllocator
from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.messages import Embedding, EmbedSubmit, Sampling, StepOutputs, Submit
from antiphon_llm.models.decoder import Decoder
from antiphon_llm.models.registry import build_model
from antiphon_llm.speculation.drafter import Drafter
from antiphon_nn.checkpoint import open_checkpoint
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Qwen3Config, Qwen3ForCausalLM

from bench.random_qwen3 import Qwen3Shape, RandomCheckpoint

ENTRIES, ENTRY_TOKENS, CONTEXT, ROWS, VOCABULARY = 26, 4, 96, 6, 160
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": CONTEXT, "attn_implementation": "eager",
}  # fmt: skip
TINY = Qwen3Shape("tiny", 32, 48, 2, 4, 2, tied=True, head_dim=16, vocabulary=VOCABULARY)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small cost less than waking a second thread for them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=["qwen3", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    torch.manual_seed(11)
    oracle = (
        Qwen3ForCausalLM(Qwen3Config(**SHAPE))
        if request.param == "qwen3"
        else Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=24))
    )
    with torch.no_grad():
        for parameter in oracle.model.layers.parameters():
            parameter.mul_(4.0)
    path: Path = tmp_path_factory.mktemp(request.param)
    oracle.save_pretrained(path)
    # Steps wider than the row limit leave out what unread prompt tokens need in the last layer.
    return build_model(open_checkpoint(path), fixed_tokens=ROWS)


class Serving:
    """A loop over a real model and either runner."""

    def __init__(
        self,
        model: Decoder,
        endpoint: object,
        options: RunnerOptions | None,
        drafter: Drafter | None = None,
        **limits_of: int,
    ) -> None:
        tables = BlockTables(
            EntryAllocator(ENTRIES), rows=ROWS, entry_tokens=ENTRY_TOKENS, context_limit=CONTEXT
        )
        pool = KvPool(model.kv_fields(ENTRY_TOKENS), entries=ENTRIES)
        views = [
            LayerCache(
                pool.views[f"{i}.keys"].flatten(0, 1), pool.views[f"{i}.values"].flatten(0, 1)
            )
            for i in range(len(model.spec.layers))
        ]
        limits = SchedulerLimits(
            max_rows=ROWS, step_tokens=24, prefill_chunk=16, entry_tokens=ENTRY_TOKENS,
            queue_limit=64,
        )  # fmt: skip
        limits = replace(limits, **limits_of)
        depth = options.overlap_depth if options else 0
        if options is None:
            builder = BatchBuilder(tables, step_tokens=24, max_rows=ROWS)
            self.runner = CpuRunner(model, views, builder, max_rows=ROWS, overlap_depth=0)
        else:
            self.runner = DeviceRunner(HostDevice(), model, views, tables, options, drafter)
            self.runner.record_graphs()
        self.endpoint = endpoint
        self.scheduler = Scheduler(limits, tables)
        served = ServedModel(VOCABULARY, CONTEXT, frozenset({VOCABULARY - 1}))
        self.speculation = (
            Speculation(drafter, depth=options.draft_depth) if options and drafter else None
        )
        self.loop = assemble_loop(
            endpoint,
            self.scheduler,
            self.runner,
            served,
            overlap_depth=depth,
            speculation=self.speculation,
        )
        self.sent: list[object] = []

    def run(self, messages: Sequence[object]) -> None:
        """Sends all messages, before any of them can fill the pool, and steps to the end."""
        self.endpoint.inbox += messages
        self.loop.take_messages()
        while self.loop.busy:
            self.loop.step()
            outputs = self.loop.outbox.flush()
            self.sent += [*([outputs] if outputs else []), *self.endpoint.drain_sent()]
            self.scheduler.check_integrity()

    def tokens(self) -> dict[str, list[int]]:
        out: dict[str, list[int]] = {}
        for message in self.sent:
            if isinstance(message, StepOutputs):
                for name, token in zip(message.request_ids, message.token_ids, strict=True):
                    out.setdefault(name, []).append(token)
        return out

    def finished(self) -> dict[str, tuple[str, str]]:
        return {
            finish.request_id: (finish.reason, finish.error)
            for message in self.sent
            if isinstance(message, StepOutputs)
            for finish in message.finished
        }


def options(**changes: object) -> RunnerOptions:
    return RunnerOptions(**{"max_rows": ROWS, "step_tokens": 24, "debug": True, **changes})


def submissions(rng: np.random.Generator, count: int) -> list[Submit]:
    """Prompts of many lengths with every kind of sampling."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
        {"temperature": 1.3, "min_p": 0.02},
        {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4},
        {"temperature": 0.9, "logit_bias": {3: 4.0, 9: -6.0}, "min_tokens": 5},
        {"temperature": 1.0, "logprobs": 3, "frequency_penalty": 0.5},
    ]
    return [
        Submit(
            f"r{index}",
            rng.integers(0, VOCABULARY - 1, int(rng.integers(1, 40))).tolist(),
            Sampling(max_tokens=int(rng.integers(1, 24)), seed=index, **kinds[index % len(kinds)]),
        )
        for index in range(count)
    ]


CASES = {
    "depth 0": options(overlap_depth=0),
    "depth 1": options(overlap_depth=1),
    "direct uploads": options(overlap_depth=1, upload_mode="direct"),
    "no graphs": options(overlap_depth=1, graphs=False),
    "above the ladder": options(overlap_depth=1, graph_rows_max=2),
}


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_cpu_runner(
    model: Decoder, endpoint_type: type, rng: np.random.Generator, name: str
) -> None:
    messages = submissions(rng, 18)
    plain = Serving(model, endpoint_type(), None)
    plain.run(messages)
    serving = Serving(model, endpoint_type(), CASES[name])
    serving.run(messages)
    assert plain.scheduler.preemptions > 0, "the pool is too large to be of interest"
    assert len(plain.tokens()) == len(messages)
    assert serving.tokens() == plain.tokens()
    assert serving.finished() == plain.finished()
    graphs = serving.runner.graphs
    if name == "no graphs":
        assert graphs.replays == 0 and set(graphs.eager) == {"off"}
    elif name == "above the ladder":
        assert graphs.replays > 0 and set(graphs.eager) == {"above ladder"}
    else:
        assert graphs.replays > 0 and not graphs.eager


def test_a_recording_watches_the_settings_that_its_draw_reads(
    model: Decoder, endpoint_type: type
) -> None:
    serving = Serving(model, endpoint_type(), options(overlap_depth=0))
    sampler = serving.runner._draws.sampler
    sampler.settings = RowSettings.allocate(ROWS)
    serving.run([Submit("r", [1, 2, 3], Sampling(max_tokens=4, seed=1))])
    reason, error = serving.finished()["r"]
    assert reason == "error" and "settings has moved" in error


def test_prompt_scores_and_pooled_states_equal_the_cpu_runner(
    model: Decoder, endpoint_type: type, rng: np.random.Generator
) -> None:
    prompt = rng.integers(0, VOCABULARY - 1, 37).tolist()
    messages = [
        Submit("scored", prompt, Sampling(prompt_logprobs=4, max_tokens=3, logprobs=2)),
        EmbedSubmit("mean", prompt, pooling="mean"),
        EmbedSubmit("last", prompt, pooling="last"),
    ]
    answers = []
    for choice in (None, options(overlap_depth=1)):
        serving = Serving(model, endpoint_type(), choice)
        serving.run(messages)
        scored = [
            message.prompt_logprobs["scored"]
            for message in serving.sent
            if isinstance(message, StepOutputs) and message.prompt_logprobs
        ]
        tops = [
            top
            for message in serving.sent
            if isinstance(message, StepOutputs)
            for top in message.top_logprobs
        ]
        vectors = {
            message.request_id: message.vector
            for message in serving.sent
            if isinstance(message, Embedding)
        }
        answers.append((scored, tops, vectors))
    (theirs, their_tops, their_vectors), (mine, my_tops, my_vectors) = answers
    assert len(mine) == 1 and len(mine[0]) == len(prompt) and mine[0][0] is None
    for one, other in zip(mine[0][1:] + my_tops, theirs[0][1:] + their_tops, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    for name, vector in their_vectors.items():
        assert my_vectors[name] == pytest.approx(vector, abs=1e-6)


def test_greedy_text_is_the_same_after_a_sleep(
    endpoint_type: type, rng: np.random.Generator
) -> None:
    dense = build_model(RandomCheckpoint(TINY, torch.device("cpu"), torch.bfloat16),
                        dtype=torch.bfloat16)  # fmt: skip
    serving = Serving(dense, endpoint_type(), options(overlap_depth=1))
    messages = submissions(rng, 6)
    serving.run(messages)
    before = serving.tokens()
    assert serving.runner.sleep() == dense.weight_bytes
    serving.runner.wake()
    serving.sent.clear()
    serving.run(messages)
    assert serving.tokens() == before
