"""The front's end of a stream: credit, order and loss."""

from __future__ import annotations

import asyncio

import pytest
from antiphon_core.errors import Unavailable
from antiphon_vocoder.recognition.messages import Consumed, Started
from antiphon_vocoder.recognition.session import Session, worker_died


async def test_audio_waits_while_the_worker_has_too_much() -> None:
    sent: list[object] = []
    session = Session(1, sent.append)
    for _ in range(2):
        await session.send_audio(bytes(600_000))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(session.send_audio(b"x"), 0.05)
    session.deliver(Consumed(1, 600_000))
    await asyncio.wait_for(session.send_audio(b"x"), 20)
    assert len(sent) == 3


async def test_a_loss_comes_behind_what_was_said_and_stops_sending() -> None:
    session = Session(1, lambda message: None)
    session.deliver(Started(1, 0, 5))
    session.end(worker_died("SIGKILL"))
    session.end(Unavailable("later"))
    assert await session.next() == Started(1, 0, 5)
    with pytest.raises(Unavailable, match="SIGKILL") as caught:
        await session.next()
    assert caught.value.reason == "WORKER_DIED"
    with pytest.raises(Unavailable, match="SIGKILL"):
        session.send("more")


async def test_a_loss_wakes_a_sender_that_waits_for_credit() -> None:
    session = Session(1, lambda message: None)
    await session.send_audio(bytes(2_000_000))
    waiting = asyncio.create_task(session.send_audio(b"x"))
    await asyncio.sleep(0)
    session.end(worker_died("SIGKILL"))
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, 20)
