"""Prefix cache, tenants, classes, cancels and sleep, through the front and the real engine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from antiphon.admin.v1 import node_pb2
from antiphon.llm.v1 import generate_pb2
from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_core.lifecycle import State
from antiphon_core.rpc.context import PRIORITY, TENANT
from antiphon_core.rpc.streams import messages, open_stream, read_all, result
from antiphon_llm.__main__ import engine_worker
from antiphon_llm.messages import Gauges
from llm_bench import Collected, LlmBench, limit
from support.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

ENTRY, ROWS, CHUNK = 16, 4, 256
ENDLESS = 3900
"""More tokens than any test waits for."""
GREEDY = generate_pb2.SamplingParams(temperature=0)
OFF = generate_pb2.CACHE_MODE_OFF

chance = random.Random(11)


def prompt(count: int) -> list[int]:
    """Ids that no other prompt of this file begins with."""
    return [chance.randrange(1000, 30_000) for _ in range(count)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlmBench]:
    """SmolLM2 with few rows and a pool that holds all prompts of this file."""
    cache: Path = tmp_path_factory.mktemp("models")
    made = LlmBench(
        cache,
        None,
        engine_worker,
        context_limit=4096,
        kv_entries=1024,
        max_rows=ROWS,
        prefill_chunk=CHUNK,
    )
    await made.start()
    yield made
    await made.stop()


def call(llm: LlmBench, ids: list[int], *, tenant: str = "", batch: bool = False, **fields: Any):
    """A Generate call of a tenant and a class; greedy, exactly ``tokens`` long."""
    tokens = fields.pop("tokens", 2)
    request = generate_pb2.GenerateRequest(
        tokens=generate_pb2.TokenInput(ids=ids),
        sampling=GREEDY,
        stop=limit(tokens, ignore_eos=True),
        **fields,
    )
    metadata = [(TENANT, tenant)] if tenant else []
    if batch:
        metadata.append((PRIORITY, "batch"))
    return llm.stub.Generate(request, metadata=metadata)


async def ask(llm: LlmBench, ids: list[int], **options: Any) -> Collected:
    """The whole answer."""
    return Collected(await read_all(call(llm, ids, **options)))


async def cached(llm: LlmBench, ids: list[int], **options: Any) -> int:
    """Prompt tokens that the cache saved this request."""
    answer = await ask(llm, ids, **options)
    assert answer.completed[0].usage.prompt_tokens == len(ids)
    return answer.completed[0].usage.cached_tokens


def gauges(llm: LlmBench) -> Gauges:
    """The engine's last report."""
    engine = llm.front._engine
    assert engine is not None
    assert engine.gauges is not None
    return engine.gauges


async def idle(llm: LlmBench) -> Gauges:
    """The report once nothing runs or holds an entry."""
    await until(lambda: not (gauges(llm).running or gauges(llm).waiting or gauges(llm).kv_used))
    return gauges(llm)


async def test_usage_tells_what_the_cache_saved_and_the_text_is_the_same(llm: LlmBench):
    ids = prompt(100)
    cold = await ask(llm, ids, tokens=12)
    warm = await ask(llm, ids, tokens=12)
    assert cold.completed[0].usage.cached_tokens == 0
    assert warm.completed[0].usage.cached_tokens == 96
    assert warm.text() == cold.text()


async def test_an_answer_that_a_stop_string_ends_tells_what_was_cached_too(llm: LlmBench):
    ids = prompt(100)
    text = (await ask(llm, ids, tokens=12)).text()
    request = generate_pb2.GenerateRequest(
        tokens=generate_pb2.TokenInput(ids=ids),
        sampling=GREEDY,
        stop=limit(200, ignore_eos=True, strings=[text[-1]]),
    )
    answer = await llm.generate(request)
    assert answer.finished[0].stop_string == text[-1]
    assert answer.completed[0].usage.cached_tokens == 96


async def test_one_token_of_the_prompt_is_always_computed(llm: LlmBench):
    ids = prompt(4 * ENTRY)
    assert await cached(llm, ids) == 0
    assert await cached(llm, ids) == 3 * ENTRY


async def test_prompts_share_up_to_where_they_part(llm: LlmBench):
    common = prompt(5 * ENTRY + 3)
    assert await cached(llm, common + prompt(40)) == 0
    assert await cached(llm, common + prompt(40)) == 5 * ENTRY


async def test_an_answer_is_reused_by_the_next_turn(llm: LlmBench):
    ids = prompt(50)
    output = generate_pb2.OutputParams(token_ids=True)
    first = await ask(llm, ids, tokens=47, output=output)
    answer = [token for delta in first.deltas for token in delta.token_ids]
    assert len(answer) == 47
    known = (len(ids) + len(answer) - 1) // ENTRY * ENTRY
    assert await cached(llm, [*ids, *answer, *prompt(20)]) == known


async def test_a_tenant_never_gets_what_another_has_cached(llm: LlmBench):
    ids = prompt(100)
    before = (await idle(llm)).kv_cached
    assert await cached(llm, ids, tenant="blue") == 0
    held_by_blue = (await idle(llm)).kv_cached
    assert await cached(llm, ids, tenant="green") == 0
    assert await cached(llm, ids) == 0
    held_by_three = (await idle(llm)).kv_cached
    assert held_by_blue - before == 6
    assert held_by_three - before == 18
    for tenant in ("blue", "green", ""):
        assert await cached(llm, ids, tenant=tenant) == 96
    assert (await idle(llm)).kv_cached == held_by_three


async def test_without_cache_nothing_is_read_or_written(llm: LlmBench):
    ids = prompt(100)
    before = (await idle(llm)).kv_cached
    assert await cached(llm, ids, cache_mode=OFF) == 0
    assert (await idle(llm)).kv_cached == before
    assert await cached(llm, ids) == 0
    assert await cached(llm, ids) == 96
    assert await cached(llm, ids, cache_mode=OFF) == 0


async def test_the_choices_of_one_request_prefill_its_prompt_once(llm: LlmBench):
    ids = prompt(320)
    before = (await idle(llm)).prefill_tokens
    answer = await ask(llm, ids, choice_count=4, tokens=6)
    texts = {answer.text(choice) for choice in range(4)}
    assert len(texts) == 1
    assert len(answer.finished) == 4
    computed = (await idle(llm)).prefill_tokens - before
    assert len(ids) <= computed <= len(ids) + 3 * ENTRY
    assert answer.completed[0].usage.cached_tokens == 0, "the choices' own prompt is no hit"
    assert await cached(llm, ids, choice_count=4) == 304


async def flush(llm: LlmBench, **scope: Any) -> node_pb2.FlushPrefixCacheResponse:
    """Forgets cached prefixes; ``scope`` is ``tenant`` or ``all``."""
    return await result(llm.node.FlushPrefixCache(node_pb2.FlushPrefixCacheRequest(**scope)))


async def test_what_is_flushed_is_computed_again(llm: LlmBench):
    ids = prompt(100)
    await flush(llm, all=True)
    assert gauges(llm).kv_cached == 0
    for tenant in ("blue", "green"):
        await ask(llm, ids, tenant=tenant)
        assert await cached(llm, ids, tenant=tenant) == 96
    before = (await idle(llm)).kv_cached
    flushed = await flush(llm, tenant="blue")
    hello = llm.front._engine.hello
    assert flushed.entries == 6
    assert flushed.bytes == 6 * hello.entry_bytes == 6 * hello.kv_bytes // (hello.kv_entries + 1)
    assert gauges(llm).kv_cached == before - 6
    assert await cached(llm, ids, tenant="blue") == 0
    assert await cached(llm, ids, tenant="green") == 96
    assert (await flush(llm, all=True)).entries == 12
    assert await cached(llm, ids, tenant="green") == 0


async def test_a_flush_leaves_what_runs_alone(llm: LlmBench):
    ids = prompt(100)
    calm = (await ask(llm, ids, tokens=60)).text()
    await idle(llm)
    async with open_stream(call(llm, ids, tokens=ENDLESS)) as stream:
        answer = messages(stream)
        text = (await anext(answer)).delta.text  # Of the acceptance: none.
        held = gauges(llm).kv_used
        assert held >= 6
        await flush(llm, all=True)
        assert gauges(llm).kv_used >= held
        while len(text) < len(calm):
            text += (await anext(answer)).delta.text
    assert text.startswith(calm)
    await idle(llm)
    assert await cached(llm, ids) == 0


async def sleep(llm: LlmBench, seconds: int) -> int:
    """Sleeps; how many bytes came back."""
    request = node_pb2.SleepRequest()
    request.timeout.seconds = seconds
    return (await result(llm.node.Sleep(request))).released_bytes


async def wake(llm: LlmBench) -> None:
    await result(llm.node.Wake(node_pb2.WakeRequest()))


async def test_asleep_refuses_and_awake_answers_as_before(llm: LlmBench):
    ids = prompt(100)
    before = await ask(llm, ids, tokens=12)
    await idle(llm)
    assert await sleep(llm, 10) > 6 * llm.front._engine.hello.entry_bytes
    assert await sleep(llm, 10) == 0
    assert llm.lifecycle.state is State.ASLEEP
    assert gauges(llm).kv_cached == 0
    with pytest.raises(Unavailable) as caught:
        await ask(llm, ids)
    assert caught.value.reason == "ASLEEP"
    await wake(llm)
    await wake(llm)
    after = await ask(llm, ids, tokens=12)
    assert after.completed[0].usage.cached_tokens == 0
    assert after.text() == before.text()


async def test_a_sleep_lets_what_runs_end_or_gives_up(llm: LlmBench):
    async with open_stream(call(llm, prompt(20), tokens=ENDLESS)) as stream:
        answer = messages(stream)
        await anext(answer)
        with pytest.raises(FailedPrecondition, match="still run"):
            await sleep(llm, 0)
        assert llm.lifecycle.state is State.READY
        assert (await anext(answer)).HasField("delta")
    async with open_stream(call(llm, prompt(20), tokens=60)) as stream:
        answer = messages(stream)
        first = await anext(answer)
        await sleep(llm, 60)
        whole = Collected([first, *[message async for message in answer]])
    assert whole.completed[0].usage.output_tokens == 60
    await wake(llm)
    assert (await ask(llm, prompt(20))).completed[0].usage.output_tokens == 2


async def test_a_wake_calls_a_waiting_sleep_off(llm: LlmBench):
    async with open_stream(call(llm, prompt(20), tokens=ENDLESS)) as stream:
        answer = messages(stream)
        await anext(answer)
        sleeping = asyncio.create_task(sleep(llm, 60))
        await until(lambda: llm.lifecycle.state is State.ASLEEP)
        await wake(llm)
        with pytest.raises(FailedPrecondition, match="woken"):
            await sleeping
        assert (await ask(llm, prompt(20))).completed[0].usage.output_tokens == 2
        assert (await anext(answer)).HasField("delta")


async def test_a_cancelled_prompt_is_computed_no_further(llm: LlmBench):
    ids = prompt(3600)
    before = await idle(llm)
    async with open_stream(call(llm, ids)):
        await until(lambda: gauges(llm).prefill_tokens > before.prefill_tokens)
        begun = gauges(llm).prefill_tokens
    after = await idle(llm)
    # A busy machine may tell of the first chunk, and cancel, a few chunks late.
    assert after.prefill_tokens - begun <= len(ids) // 2
    assert after.kv_used == 0


class Reader:
    """Reads a stream in a task and counts its tokens."""

    def __init__(self, stream: Any) -> None:
        self.tokens = 0
        self.done = False
        self.task = asyncio.create_task(self._read(stream))

    async def _read(self, stream: Any) -> None:
        async with open_stream(stream):
            async for message in messages(stream):
                if message.HasField("delta"):
                    self.tokens += message.delta.token_count
        self.done = True


async def test_batch_work_stands_still_while_interactive_work_runs(llm: LlmBench):
    batch = [Reader(call(llm, prompt(20), batch=True, tokens=150)) for _ in range(ROWS)]
    await until(lambda: all(reader.tokens for reader in batch))
    interactive = Reader(call(llm, prompt(20), tokens=60))
    # Not at its ends: on a busy machine what was drawn before and after is read together with it.
    await until(lambda: interactive.tokens > 8)
    seen = sum(reader.tokens for reader in batch)
    await until(lambda: interactive.tokens > 40)
    stolen = sum(reader.tokens for reader in batch) - seen
    assert stolen <= 2 * ROWS
    assert not any(reader.done for reader in batch)
    await asyncio.gather(*(reader.task for reader in (*batch, interactive)))
    assert [reader.tokens for reader in batch] == [150] * ROWS


async def test_a_backlog_of_batch_work_refuses_no_interactive_request(llm: LlmBench):
    backlog = llm.settings.resolved("queue_limit") + ROWS
    batch = [Reader(call(llm, prompt(20), batch=True, tokens=100)) for _ in range(backlog)]
    await until(lambda: llm.front.measures().waiting_batch or llm.front.measures().waiting)
    answer = await ask(llm, prompt(20), tokens=3)
    assert answer.completed[0].usage.output_tokens == 3
    for reader in batch:
        reader.task.cancel()
    await asyncio.gather(*(reader.task for reader in batch), return_exceptions=True)
    await idle(llm)
