"""openai for node, openai-agents, LiveKit and Pipecat, unmodified, on real models through Envoy.

Each hears a spoken question answered, calls a tool, is interrupted, truncates what nobody heard and
connects again; the oracle judges every event that they receive.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from antiphon_cli.talk.audio import REALTIME_RATE, write_wav
from antiphon_cli.talk.speech import word_error_rate
from antiphon_cli.tour import QUESTION
from piper_speech import speak
from support.node import node_client
from support.peers import peer_environment, peer_packages
from support.realtime_tap import Tap, self_signed, tapped
from support.suite import RunningSuite

HERE = Path(__file__).parent / "realtime"
pytestmark = [pytest.mark.real, pytest.mark.timeout(420)]

MODEL = "default"
RUN_S = 200
HARMLESS = {"response_cancel_not_active", "conversation_already_has_active_response"}


@pytest.fixture(scope="module")
def packages() -> Path:
    return peer_packages(HERE)


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("speech") / "question.wav"
    write_wav(file, speak(QUESTION, REALTIME_RATE))
    return file


async def drive(tap: Tap, packages: Path, driver: str, question: Path) -> Any:
    """What a Python driver saw."""
    command = (sys.executable, str(HERE / driver), tap.url, MODEL, str(question))
    return await run(*command, env=peer_environment(packages))


async def run(*command: str, **options: Any) -> Any:
    """The JSON that a driver prints last; its log where it failed."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*command, **pipes, **options)
    try:
        out, err = await asyncio.wait_for(process.communicate(), RUN_S)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, err.decode()[-4000:]
    return json.loads(out.decode().strip().rpartition("\n")[2])


def check_lines(tap: Tap, connections: int) -> None:
    """The oracle has nothing against what came, and the client made no mistake."""
    assert len(tap.lines) == connections
    for line in tap.lines:
        line.check()
        codes = {event["error"]["code"] for event in line.of("error")}
        assert codes <= HARMLESS, codes
    for event in tap.of("response.done"):
        made = {item["type"] for item in event["response"]["output"]}
        assert len(made) < 2, "nothing of a call is spoken, even where it is cut"


def check_interruption(tap: Tap) -> None:
    """A reply that was being made was cut by speech, then truncated."""
    reasons = [
        (event["response"]["status_details"] or {}).get("reason")
        for event in tap.of("response.done")
    ]
    assert "turn_detected" in reasons
    assert tap.of("conversation.item.truncated") or tap.sent_of("conversation.item.delete")
    failed = [e for e in tap.of("response.done") if e["response"]["status"] == "failed"]
    assert failed == []


async def test_openai_for_node(suite: RunningSuite, question: Path) -> None:
    folder = node_client()
    tls, certificate = self_signed(question.parent)
    async with tapped(suite.url, tls=tls) as tap:
        # The package makes every address of a session wss://.
        command = ("node", "realtime.mjs", f"{tap.url}/v1", MODEL, str(question))
        trust = {**os.environ, "NODE_EXTRA_CA_CERTS": str(certificate)}
        seen = await run(*command, cwd=folder, env=trust)
    assert seen["errors"] == [] and seen["audio"] > 2
    assert word_error_rate(QUESTION, seen["transcripts"][0]) <= 0.35
    assert json.loads(seen["call"]["arguments"])["city"] in ("Paris", "Rome")
    assert seen["cut"]["status_details"]["reason"] == "turn_detected"
    assert seen["truncated"]["audio_end_ms"] == 50
    assert seen["again"]["audio"] > 0
    check_lines(tap, connections=2)
    check_interruption(tap)


async def test_openai_agents(suite: RunningSuite, packages: Path, question: Path) -> None:
    async with tapped(suite.url) as tap:
        seen = await drive(tap, packages, "agents_driver.py", question)
    first = seen["first"]
    assert first["errors"] == [] and first["exceptions"] == []
    assert first["audio_bytes"] > REALTIME_RATE // 2
    assert word_error_rate(QUESTION, first["transcript"]) <= 0.35
    assert set(first["asked"]) <= {"Paris", "Rome"} and first["asked"]
    assert first["events"]["audio_interrupted"] >= 1
    assert seen["again"]["events"]["audio"] >= 1
    check_lines(tap, connections=2)
    check_interruption(tap)
    assert tap.of("conversation.item.retrieved"), "it looks up what it was told"


async def test_livekit(suite: RunningSuite, packages: Path, question: Path) -> None:
    async with tapped(suite.url, cut_after="input_audio_buffer.clear") as tap:
        seen = await drive(tap, packages, "livekit_driver.py", question)
    assert seen["spoken"]["samples"] > REALTIME_RATE // 4 and seen["spoken"]["text"]
    assert word_error_rate(QUESTION, seen["transcripts"][0]) <= 0.35
    call, *_ = seen["tool"]["called"]["calls"]
    assert call["name"] == "weather" and json.loads(call["args"])["city"] in ("Paris", "Rome")
    assert seen["tool"]["answered"]["text"]
    assert seen["barge_in"]["answered"]["samples"] > 0
    assert seen["events"]["session_reconnected"] == 1 and seen["after"]["text"]
    assert len(seen["errors"]) == 1 and "closed unexpectedly" in seen["errors"][0]
    check_lines(tap, connections=2)
    check_interruption(tap)
    replayed = tap.lines[1].sent_of("conversation.item.create")
    assert len(replayed) >= 6, "the plugin replays its history on the new line"
    assert len(tap.lines[1].of("conversation.item.added")) >= len(replayed)


async def test_pipecat(suite: RunningSuite, packages: Path, question: Path) -> None:
    async with tapped(suite.url) as tap:
        seen = await drive(tap, packages, "pipecat_driver.py", question)
    assert seen["problem"] == "" and seen["errors"] == []
    assert word_error_rate(QUESTION, seen["transcripts"][0]) <= 0.35
    assert seen["called"] and seen["called"][0]["city"] in ("Paris", "Rome")
    assert seen["audio"] > REALTIME_RATE and seen["counts"]["InterruptionFrame"] >= 2
    check_lines(tap, connections=2)
    check_interruption(tap)
    assert tap.sent_of("conversation.item.truncate")
