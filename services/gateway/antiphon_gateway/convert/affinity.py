"""Which replica a prompt belongs to: the key that a balancing proxy hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b

from antiphon_gateway.domain.generation import ChatInput, Content, GenerateRequest, Message

PREFIX_BYTES = 2048
"""Of the canonical prompt: about the 500 tokens from which a cached prefix is worth a detour."""


def affinity_key(request: GenerateRequest, tenant: str) -> str:
    """32 hex digits, equal for requests of one tenant and model whose prompts begin alike.

    Empty where the canonical prompt is shorter than ``PREFIX_BYTES``: such a prompt has little
    to reuse, and its key would change with the next turn of the conversation.
    """
    digest = blake2b(f"{tenant}\0{request.model}\0".encode(), digest_size=16)
    left = PREFIX_BYTES
    for piece in _canonical(request.input):
        digest.update(piece[:left])
        left -= len(piece)
        if left <= 0:
            return digest.hexdigest()
    return ""


def _canonical(source: ChatInput | str | Sequence[int]) -> Iterator[bytes]:
    """The prompt in the order in which templates render it, without knowing the template."""
    if isinstance(source, str):
        yield source[:PREFIX_BYTES].encode()
    elif isinstance(source, ChatInput):
        for tool in source.tools:
            yield f"\1{tool.name}\2{tool.description}\2{tool.parameters}".encode()
        for message in source.messages:
            yield from _message(message)
    else:
        for token in source:
            yield token.to_bytes(4, "little")


def _message(message: Message) -> Iterator[bytes]:
    yield f"\3{message.role}\2{message.name}\2{message.tool_call_id}".encode()
    for part in message.parts:
        yield _content(part)
    yield message.reasoning.encode()
    for call in message.tool_calls:
        yield f"\4{call.name}\2{call.arguments}".encode()


def _content(part: Content) -> bytes:
    if isinstance(part, str):
        return b"\5" + part.encode()
    return b"\6" + blake2b(part.data, digest_size=16).digest()
