"""Sessions whose recognisers share one call, and share nothing else."""

from __future__ import annotations

from antiphon_gateway.clients.recognition_multiplex import CREDIT_BYTES
from realtime_gateway import RealtimeGateway, loud
from support.waiting import until

QUIET = bytes(4800)


async def test_a_lost_call_is_replaced_for_every_session(gateway: RealtimeGateway) -> None:
    running = gateway.running
    async with gateway.session() as first, gateway.session() as second:
        for client in (first, second):
            await client.append(QUIET)
        await until(lambda: running.recognizer == 2)
        assert running.shared == 1
        running.break_shared = True
        await first.append(loud(0.6))
        await until(lambda: running.recognizer == 0)
        running.break_shared = False
        await until(lambda: running.recognizer == 2)
        assert running.shared >= 2
        for client in (first, second):
            await client.speak()
            events = await client.until("response.done")
            assert events[-1]["response"]["status"] == "completed"
            client.oracle.finish()
    await until(lambda: running.none)


async def test_a_recogniser_that_is_behind_holds_one_session_back(
    gateway: RealtimeGateway,
) -> None:
    gateway.script.transcript_delay = 60.0
    async with gateway.session() as slow, gateway.session() as other:
        await slow.speak()
        await slow.until("input_audio_buffer.speech_stopped")
        heard = gateway.running.audio
        await slow.append(bytes(2 * CREDIT_BYTES))
        await other.append(loud(0.1))
        await other.until("input_audio_buffer.speech_started")
        assert gateway.running.audio <= heard + len(loud(0.1))


async def test_before_a_proxy_each_session_has_its_own_call() -> None:
    balanced = RealtimeGateway(balanced=True)
    await balanced.start()
    try:
        async with balanced.session() as client:
            await client.update(audio={"input": {"transcription": {"model": "tiny"}}})
            await client.speak()
            events = await client.until("response.done")
            assert events[-1]["response"]["status"] == "completed"
            await client.update(audio={"input": {"turn_detection": None}})
            await client.append(loud(0.2))
            await client.send("input_audio_buffer.commit")
            await client.until("conversation.item.input_audio_transcription.completed")
        assert balanced.running.shared == 0
        await until(lambda: balanced.running.none)
    finally:
        await balanced.stop()
