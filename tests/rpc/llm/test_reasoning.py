"""Reasoning against the real engine: a template opens a trace, the budget closes it, what is asked
of the answer holds behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from antiphon.llm.v1 import chat_pb2, generate_pb2, llm_service_pb2
from antiphon_llm.__main__ import engine_worker
from llm_bench import Collected, LlmBench, chat, limit

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{% if not quiet %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
)
GREEDY = generate_pb2.SamplingParams(temperature=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llm(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LlmBench]:
    cache: Path = tmp_path_factory.mktemp("models")
    template = cache / "think.jinja"
    template.write_text(TEMPLATE)
    made = LlmBench(
        cache, None, engine_worker, context_limit=1024, kv_entries=256, chat_template=str(template)
    )
    await made.start()
    yield made
    await made.stop()


def thinking(budget: int | None, max_tokens: int = 40) -> generate_pb2.GenerateRequest:
    request = chat("What is the capital of France?", sampling=GREEDY, stop=limit(max_tokens))
    if budget is not None:
        request.chat.thinking_budget = budget
    return request


async def closing_tokens(llm: LlmBench) -> int:
    """Length of the closing marker in this vocabulary, which has no token for it."""
    request = llm_service_pb2.TokenizeRequest(text="</think>", omit_special_tokens=True)
    return len((await llm.stub.Tokenize(request)).ids)


def reasoning(found: Collected) -> str:
    return "".join(delta.reasoning for delta in found.deltas)


async def test_the_budget_closes_the_trace(llm: LlmBench) -> None:
    unbounded = await llm.generate(thinking(None, 12))
    assert unbounded.text() == ""
    assert reasoning(unbounded)
    usage = unbounded.completed[0].usage
    assert usage.reasoning_tokens == usage.output_tokens
    for budget in (0, 1, 5):
        found = await llm.generate(thinking(budget))
        assert reasoning(unbounded).startswith(reasoning(found))
        assert found.text()
        assert "think" not in found.text()
        usage = found.completed[0].usage
        assert budget < usage.reasoning_tokens < usage.output_tokens
        assert usage.reasoning_tokens - budget == await closing_tokens(llm)


async def test_a_call_behind_the_trace(llm: LlmBench) -> None:
    request = thinking(5, 80)
    request.chat.tools.add(name="now", description="The time of day")
    request.chat.tool_choice.mode = chat_pb2.ToolChoice.MODE_NAMED
    request.chat.tool_choice.name = "now"
    found = await llm.generate(request)
    assert reasoning(found)
    pieces = [piece for delta in found.deltas for piece in delta.tool_calls]
    assert pieces[0].name == "now"
    assert json.loads("".join(piece.arguments for piece in pieces)) == {}
    assert found.text() == ""
    assert found.finished[0].reason == generate_pb2.FINISH_REASON_TOOL_CALLS


async def test_a_prompt_that_closes_the_trace_has_no_reasoning(llm: LlmBench) -> None:
    request = thinking(None)
    request.chat.template_kwargs_json = '{"quiet": true}'
    found = await llm.generate(request)
    assert found.text() and not reasoning(found)
    assert not found.completed[0].usage.HasField("reasoning_tokens")
