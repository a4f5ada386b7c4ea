"""Client edits of the conversation, truncation and what the prompt shows of it."""

from __future__ import annotations

import base64
import json

import pytest
from antiphon_gateway.realtime import commands, events, inputs, session
from antiphon_gateway.realtime.conversation import MAX_ITEMS, MAX_KEPT_AUDIO_BYTES
from antiphon_gateway.realtime.items import InputText, MessageItem
from realtime_bench import SECOND, Bench, kinds, message_texts


def message(text: str, role: str = "user", **fields: object) -> dict:
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "role": role,
        "content": [{"type": kind, "text": text}],
        **fields,
    }


def create(bench: Bench, item: dict, **fields: object) -> list[dict]:
    return bench.client("conversation.item.create", item=item, **fields)


def order(bench: Bench) -> list[str]:
    return [entry.id for entry in bench.state.conversation]


def test_items_go_where_the_client_wants_them(bench: Bench) -> None:
    sent = create(bench, message("b", id="b"))
    assert kinds(sent) == ["conversation.item.added", "conversation.item.done"]
    assert sent[0]["item"]["id"] == "b" and sent[0]["previous_item_id"] is None
    create(bench, message("d", id="d"))
    assert (
        create(bench, message("a", id="a"), previous_item_id="root")[0]["previous_item_id"] is None
    )
    assert create(bench, message("c", id="c"), previous_item_id="b")[0]["previous_item_id"] == "b"
    assert order(bench) == ["a", "b", "c", "d"]


def test_ids_are_checked(bench: Bench) -> None:
    create(bench, message("a", id="a"))
    assert create(bench, message("a", id="a"))[0]["error"]["code"] == "item_create_duplicate_id"
    sent = create(bench, message("b"), previous_item_id="nowhere")
    assert sent[0]["error"]["code"] == "item_create_invalid_previous_item_id"
    assert create(bench, message("b", id="x" * 65))[0]["error"]["param"] == "item.id"
    for action in ("delete", "retrieve"):
        sent = bench.client(f"conversation.item.{action}", item_id="nowhere")
        assert sent[0]["error"]["code"] == f"item_{action}_invalid_item_id"
    sent = bench.client("conversation.item.truncate", item_id="a", content_index=0, audio_end_ms=0)
    assert sent[0]["error"]["code"] == "item_truncate_invalid_item_id"


def test_delete_and_retrieve(bench: Bench) -> None:
    create(bench, message("a", id="a"))
    assert bench.client("conversation.item.retrieve", item_id="a")[0]["item"]["content"] == [
        {"type": "input_text", "text": "a"}
    ]
    sent = bench.client("conversation.item.delete", item_id="a")
    assert sent[0]["type"] == "conversation.item.deleted" and order(bench) == []


@pytest.mark.parametrize(
    "item",
    [
        {"type": "message", "role": "assistant", "content": [{"type": "output_audio"}]},
        {"type": "message", "role": "system", "content": [{"type": "input_audio", "audio": ""}]},
        {"type": "message", "role": "user", "content": [{"type": "input_audio"}]},
        {"type": "message", "role": "user", "content": []},
        {"type": "message", "role": "owl", "content": []},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "https://example.com/x.png"}],
        },
        {"type": "function_call", "name": "x", "arguments": "{}"},
    ],
)
def test_what_a_client_may_not_create(bench: Bench, item: dict) -> None:
    sent = create(bench, item)
    assert kinds(sent) == ["error"] and sent[0]["error"]["param"].startswith("item")


def test_all_roles_reach_the_prompt(bench: Bench) -> None:
    create(bench, message("Speak like a pirate.", "system"))
    create(bench, message("Hello"))
    create(bench, message("Ahoy", "assistant"))
    create(bench, message("More"))
    bench.client("response.create")
    assert message_texts(bench.plan) == [
        ("system", "Be brief."),
        ("system", "Speak like a pirate."),
        ("user", "Hello"),
        ("assistant", "Ahoy"),
        ("user", "More"),
    ]


def test_audio_that_the_client_creates_is_transcribed_for_the_prompt(bench: Bench) -> None:
    audio = base64.b64encode(bytes(SECOND)).decode()
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}
    item_id = create(bench, item)[0]["item"]["id"]
    asked = bench.commands[-1]
    assert isinstance(asked, commands.TranscribeItem) and len(asked.audio) == SECOND
    bench.client("response.create")
    bench.feed(inputs.ItemTranscribed(item_id, "from a file"))
    assert message_texts(bench.plan)[-1] == ("user", "from a file")


def test_deleting_an_item_that_is_awaited_lets_the_response_go_on(bench: Bench) -> None:
    bench.say("first")
    bench.update(audio={"input": {"turn_detection": None}})
    bench.append(1)
    item_id = bench.client("input_audio_buffer.commit")[0]["item_id"]
    bench.client("response.create")
    bench.client("conversation.item.delete", item_id=item_id)
    assert bench.plan.chat.messages[-1].parts == ("first",)


def test_truncation_keeps_what_was_heard(bench: Bench) -> None:
    bench.turn("count")
    bench.reply("One two ", "three four ", "five six.", end=False)
    bench.play(0.6)
    item_id = bench.state.active.message.entry.id  # pyright: ignore[reportOptionalMemberAccess]
    bench.end()
    sent = bench.client(
        "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=300
    )
    assert sent[0] == {
        "type": "conversation.item.truncated",
        "event_id": sent[0]["event_id"],
        "item_id": item_id,
        "content_index": 0,
        "audio_end_ms": 300,
    }
    bench.turn("go on")
    assert message_texts(bench.plan)[2] == ("assistant", "One two three")
    item = bench.client("conversation.item.retrieve", item_id=item_id)[0]["item"]
    assert item["status"] == "incomplete"
    assert item["content"][0]["transcript"] == "One two three"
    assert len(base64.b64decode(item["content"][0]["audio"])) == 300 * 48


def test_truncation_only_shortens_and_bounds_its_claim(bench: Bench) -> None:
    bench.turn()
    bench.reply("One two three.", end=False)
    bench.play(1.0)
    item_id = bench.state.active.message.entry.id  # pyright: ignore[reportOptionalMemberAccess]
    bench.end()

    def truncate(ms: int) -> dict:
        return bench.client(
            "conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=ms
        )[0]

    assert truncate(2001)["error"]["param"] == "audio_end_ms"
    assert truncate(1900)["audio_end_ms"] == 1000
    assert truncate(400)["audio_end_ms"] == 400
    assert truncate(700)["audio_end_ms"] == 400


def test_without_a_truncate_an_interrupted_reply_counts_as_heard_by_the_clock(
    bench: Bench,
) -> None:
    bench.turn("count")
    bench.reply("One two ", "three four ", "five six.", end=False)
    bench.play(0.6)
    bench.now += 0.2
    bench.append(1)
    bench.start_speech(bench.state.buffer.end_ms)
    bench.stop_speech(bench.state.buffer.end_ms)
    bench.transcript("stop")
    assert message_texts(bench.plan)[2] == ("assistant", "One two")


def test_a_reply_that_nobody_heard_leaves_the_history(bench: Bench) -> None:
    bench.turn("count")
    bench.reply("One two three", end=False)
    bench.append(1)
    bench.start_speech(bench.state.buffer.end_ms)
    bench.stop_speech(bench.state.buffer.end_ms)
    bench.transcript("never mind")
    assert message_texts(bench.plan)[1:] == [("user", "count\nnever mind")]


def test_items_are_bounded(bench: Bench) -> None:
    for index in range(MAX_ITEMS + 2):
        item = MessageItem(id=f"i{index}", role="user", content=[InputText("x")])
        made = session.step(bench.state, events.CreateItem(item=item), bench.now)
        for command in made:
            assert isinstance(command, commands.Send)
            bench.oracle.observe(json.loads(events.encode(command.event)))
    sent = create(bench, message("x", id="last"))
    assert kinds(sent)[-1] == "conversation.item.deleted"
    assert order(bench)[0] == "i3" and len(order(bench)) == MAX_ITEMS


def test_kept_audio_is_bounded(bench: Bench) -> None:
    bench.update(audio={"input": {"turn_detection": None}})
    ids = []
    for _ in range(9):
        bench.append(60)
        ids.append(bench.client("input_audio_buffer.commit")[0]["item_id"])
    assert bench.state.conversation.kept_audio_bytes <= MAX_KEPT_AUDIO_BYTES
    oldest = bench.client("conversation.item.retrieve", item_id=ids[0])[0]["item"]
    newest = bench.client("conversation.item.retrieve", item_id=ids[-1])[0]["item"]
    assert "audio" not in oldest["content"][0]
    assert len(base64.b64decode(newest["content"][0]["audio"])) == 60 * SECOND
