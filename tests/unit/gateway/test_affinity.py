"""The key that binds a prompt to a replica."""

from __future__ import annotations

from antiphon_gateway.convert.affinity import PREFIX_BYTES, affinity_key
from antiphon_gateway.domain.generation import (
    ChatInput,
    GenerateRequest,
    ImageContent,
    Message,
    Role,
    Tool,
)
from hypothesis import given
from hypothesis import strategies as st

LONG = "context " * 400


def chat(*texts: str, tools: tuple[Tool, ...] = (), model: str = "m") -> GenerateRequest:
    messages = [Message(Role.USER, (text,)) for text in texts]
    return GenerateRequest(ChatInput(messages, tools), model=model)


def test_a_conversation_keeps_its_replica_as_it_grows() -> None:
    key = affinity_key(chat(LONG), "acme")
    assert len(key) == 32
    assert key == affinity_key(chat(LONG, "an answer", "a question"), "acme")


@given(st.text(max_size=300))
def test_only_the_beginning_counts(rest: str) -> None:
    assert affinity_key(GenerateRequest(LONG + rest, "m"), "") == affinity_key(
        GenerateRequest(LONG, "m"), ""
    )


def test_tenants_models_tools_and_prompts_differ() -> None:
    keys = [
        affinity_key(chat(LONG), "acme"),
        affinity_key(chat(LONG), "rival"),
        affinity_key(chat(LONG, model="m:adapter"), "acme"),
        affinity_key(chat(LONG, tools=(Tool("look_up"),)), "acme"),
        affinity_key(chat("other " + LONG), "acme"),
        affinity_key(chat(LONG[:1000], LONG), "acme"),
        affinity_key(GenerateRequest(LONG, "m"), "acme"),
        affinity_key(GenerateRequest(list(range(2000)), "m"), "acme"),
    ]
    assert "" not in keys
    assert len(set(keys)) == len(keys)


def test_a_short_prompt_has_none() -> None:
    assert affinity_key(chat("Hi"), "acme") == ""
    assert affinity_key(GenerateRequest("x" * (PREFIX_BYTES - 1), "m"), "") == ""
    assert affinity_key(GenerateRequest("x" * PREFIX_BYTES, "m"), "") != ""
    assert affinity_key(GenerateRequest([1] * (PREFIX_BYTES // 4 - 1), "m"), "") == ""


def test_a_picture_counts_by_its_bytes() -> None:
    def key(data: bytes) -> str:
        parts = (ImageContent(data, "image/png"), LONG)
        return affinity_key(GenerateRequest(ChatInput([Message(Role.USER, parts)]), "m"), "")

    assert key(b"one" * 9000) != key(b"two" * 9000)
    assert key(b"one" * 9000) == key(b"one" * 9000)
