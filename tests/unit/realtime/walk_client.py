"""What the client of a walk does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from walk import Walk

PATTERN = bytes(range(251)) * 600
"""Input audio; its period is no multiple of a sample, so a shifted byte shows."""
_OPTIONAL = (
    "conversation.item.created",
    "conversation.item.input_audio_transcription.segment",
    "output_audio_buffer.started",
    "output_audio_buffer.stopped",
    "output_audio_buffer.cleared",
)


def append(walk: Walk) -> None:
    """More audio."""
    start = len(walk.appended) % 251
    data = PATTERN[start : start + walk.random.randrange(12_000)]
    walk.appended += data
    walk.client(type="input_audio_buffer.append", audio=data)


def commit(walk: Walk) -> None:
    """A manual commit."""
    walk.client(type="input_audio_buffer.commit")


def clear(walk: Walk) -> None:
    """The buffer is dropped, and all turn state with it."""
    walk.client(type="input_audio_buffer.clear")
    assert walk.state.turn is None and not len(walk.state.buffer)
    assert walk.state.speculation is None, "a prepared reply outlives its turn"


def _item_id(walk: Walk) -> str:
    """Of an item, or of none."""
    ids = [entry.id for entry in walk.state.conversation] or ["item_none"]
    return walk.random.choice([*ids, "item_none"])


def create_item(walk: Walk) -> None:
    """A message, or the result of a call."""
    content: dict[str, Any] = {"type": "input_text", "text": "hi"}
    if walk.random.random() < 0.2:
        content = {"type": "input_audio", "audio": bytes(9600)}
    item: dict[str, Any] = {"type": "message", "role": "user", "content": [content]}
    if walk.backends.calls and walk.random.random() < 0.5:
        call = walk.random.choice(walk.backends.calls)
        item = {"type": "function_call_output", "call_id": call, "output": "x"}
    previous = walk.random.choice([None, None, "root", _item_id(walk)])
    walk.client(type="conversation.item.create", item=item, previous_item_id=previous)


def edit_item(walk: Walk) -> None:
    """An item is deleted, retrieved or truncated."""
    kind = walk.random.choice(["delete", "retrieve", "truncate"])
    place = {"content_index": 0, "audio_end_ms": walk.random.randrange(50)}
    extra = place if kind == "truncate" else {}
    walk.client(type=f"conversation.item.{kind}", item_id=_item_id(walk), **extra)


def create_response(walk: Walk) -> None:
    """A reply is asked for."""
    response: dict[str, Any] = {}
    if walk.random.random() < 0.4:
        response["conversation"] = "none"
    if walk.random.random() < 0.3:
        response["output_modalities"] = ["text"]
    if walk.random.random() < 0.2:
        response["input"] = []
    walk.client(type="response.create", response=response)


def cancel(walk: Walk) -> None:
    """A reply is cancelled, or one that is not there."""
    ids = [None, "resp_none", *walk.state.responses]
    walk.client(type="response.cancel", response_id=walk.random.choice(ids))


def clear_output(walk: Walk) -> None:
    """Unsent audio is dropped."""
    walk.client(type="output_audio_buffer.clear")


def update(walk: Walk) -> None:
    """The configuration changes, or is refused."""
    draw = walk.random
    detection: dict[str, Any] | None = draw.choice(
        [
            None,
            {"type": "server_vad", "create_response": draw.random() < 0.8},
            {"type": "semantic_vad", "interrupt_response": draw.random() < 0.5},
            {"type": "server_vad", "idle_timeout_ms": 2000},
            {"type": "server_vad", "threshold": 7},
        ]
    )
    change: dict[str, Any] = {"audio": {"input": {"turn_detection": detection}}}
    if not walk.state.config.transcribes_only:
        change["speculative_ms"] = draw.choice([None, 200])
        change["optional_events"] = draw.choice([[], list(_OPTIONAL)])
        change["instructions"] = draw.choice(["Be brief.", "Be long."])
        tool = {"type": "function", "name": "look", "ack_phrases": ["One moment."]}
        change["tools"] = draw.choice([[], [tool]])
    walk.client(type="session.update", session=change)
