"""Appends of any form over a real socket: none is lost, and each error names its event."""

from __future__ import annotations

import base64
import json
import random

import pytest
from antiphon_gateway.realtime import session
from antiphon_gateway.realtime.events import AppendAudio
from realtime_gateway import RealtimeGateway

AUDIO = random.Random(3).randbytes(40_001) + b"x"


def append(audio: bytes, **fields: object) -> str:
    """An append as a client writes it; given fields come before its own."""
    encoded = base64.b64encode(audio).decode()
    return json.dumps({**fields, "type": "input_audio_buffer.append", "audio": encoded})


def turned(audio: bytes) -> str:
    """An append that says what it is behind a long field."""
    encoded = base64.b64encode(audio).decode()
    return json.dumps({"audio": encoded, "type": "input_audio_buffer.append"})


BAD = [
    ('{"type":"input_audio_buffer.append","event_id":"b1","audio":"!"}', "b1", "audio"),
    ('{"type":"input_audio_buffer.append","event_id":"b2"}', "b2", "audio"),
    ('{"type":"input_audio_buffer.append","event_id":"b3","audio":7}', "b3", "audio"),
    (append(b"", event_id="x" * 513), None, "event_id"),
    ('{"type":"input_audio_buffer.append"', None, None),
    ('{"type":"x","event_id":"\\"input_audio_buffer.append\\""}',
     '"input_audio_buffer.append"', "type"),
]  # fmt: skip


async def test_good_and_bad_appends_keep_their_order(gateway: RealtimeGateway) -> None:
    draw = random.Random(8)
    forms = [append, turned, lambda data: append(data, event_id="größer"), append]
    bad = list(BAD)
    async with gateway.session() as client:
        await client.update(audio={"input": {"turn_detection": None}})
        start = 0
        while start < len(AUDIO):
            end = start + draw.choice((0, 1, 960, 961, 3000))
            await client.socket.send(draw.choice(forms)(AUDIO[start:end]))
            start = end
            if bad and draw.random() < 0.5:
                await client.socket.send(bad.pop(0)[0])
        assert not bad
        await client.send("input_audio_buffer.commit")
        events = await client.until("input_audio_buffer.committed")
        errors = [event["error"] for event in events if event["type"] == "error"]
        assert [(error["event_id"], error["param"]) for error in errors] == [
            (event_id, param) for _, event_id, param in BAD
        ]
        item_id = events[-1]["item_id"]
        await client.send("conversation.item.retrieve", item_id=item_id)
        item = (await client.until("conversation.item.retrieved"))[-1]["item"]
    assert base64.b64decode(item["content"][0]["audio"]) == AUDIO


async def test_a_defect_met_by_an_append_ends_its_session_alone(
    gateway: RealtimeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = session.step

    def broken(state, event, now):
        if isinstance(event, AppendAudio) and event.audio == b"boom":
            raise LookupError("a defect")
        return step(state, event, now)

    monkeypatch.setattr(session, "step", broken)
    async with gateway.session() as victim, gateway.session() as other:
        await victim.socket.send(append(b"boom"))
        await victim.socket.wait_closed()
        assert victim.socket.close_code == 1011
        await other.speak()
        await other.until("response.done")
