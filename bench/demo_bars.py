"""`make bars-demo`: the measurable claims of the demo, through Envoy on real models.

Starts a suite of its own on free ports (PORT_BASE), so that it can run beside another one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

import httpx
from antiphon_cli.suite.runner import Suite
from antiphon_cli.suite.settings import EdgeSettings
from antiphon_cli.talk.chat import ChatAnswer, stream_chat
from antiphon_cli.talk.http import open_client
from antiphon_cli.talk.realtime import Turn, open_session, speak_turn
from antiphon_cli.talk.speech import say, transcribe, word_error_rate
from antiphon_cli.tour import QUESTION, SENTENCE
from antiphon_core.logs import configure_logging

from bench.report import Report

PORT_BASE = 18080
CHAT_RUNS = 20
SPEECH_RUNS = 10
REALTIME_RUNS = 7
ANSWER_TOKENS = 96
PROMPTS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "How do plants make food?",
    "Tell me a fact about the moon.",
    "Why is the sky blue?",
)


async def measure_start(report: Report, settings: EdgeSettings) -> None:
    """From the command to the first token, with everything installed."""
    started = time.perf_counter()
    async with Suite(settings) as suite, open_client(suite.url) as client:
        await chat(client, PROMPTS[0], max_tokens=8)
        report.add("cold_start_to_first_token", time.perf_counter() - started)


async def chat(client: httpx.AsyncClient, prompt: str, **parameters: object) -> ChatAnswer:
    """One greedy streamed answer unless ``parameters`` say otherwise."""
    settings = {"max_tokens": ANSWER_TOKENS, "temperature": 0.0, **parameters}
    return await stream_chat(client, [{"role": "user", "content": prompt}], **settings)


async def measure_chat(report: Report, client: httpx.AsyncClient) -> None:
    """One stream at a time; each prompt text is new to any cache."""
    answers = [
        await chat(client, f"{PROMPTS[run % len(PROMPTS)]} (question {run})")
        for run in range(CHAT_RUNS)
    ]
    first = [answer.time_to_first_token * 1000 for answer in answers]
    rates = [answer.tokens_per_second for answer in answers if answer.tokens > 8]
    report.add("chat_first_token_p50", statistics.median(first), first)
    report.add("chat_tokens_per_second", statistics.median(rates), rates)


async def measure_company(report: Report, client: httpx.AsyncClient) -> None:
    """The same seeded request alone, then eight times at once among different neighbours."""
    seeded = {"temperature": 0.8, "seed": 7, "max_tokens": 48}
    alone = await chat(client, PROMPTS[1], **seeded)
    equal = 0
    for _ in range(2):
        others = [chat(client, f"{PROMPTS[n % 5]} (neighbour {n})") for n in range(4)]
        same = [chat(client, PROMPTS[1], **seeded) for _ in range(4)]
        answers = await asyncio.gather(*same, *others)
        equal += sum(answer.text == alone.text for answer in answers[:4])
    report.add("seeded_tokens_equal_in_company", equal)


async def measure_speech(report: Report, client: httpx.AsyncClient) -> None:
    """First audio of one sentence, and what the suite hears of it."""
    spoken = [await say(client, SENTENCE) for _ in range(SPEECH_RUNS)]
    first = [one.time_to_first_audio * 1000 for one in spoken]
    report.add("say_first_audio_p50", statistics.median(first), first)
    body = {"model": "tts-1", "input": SENTENCE, "voice": "alloy", "response_format": "wav"}
    audio = (await client.post("/v1/audio/speech", json=body)).content
    text = await transcribe(client, audio, "speech.wav")
    report.add("own_speech_word_error_rate", word_error_rate(SENTENCE, text))


async def measure_realtime(report: Report, suite: Suite, client: httpx.AsyncClient) -> None:
    """Spoken questions at the pace of a microphone, one session each."""
    question = await say(client, QUESTION)
    turns: list[Turn] = []
    for _ in range(REALTIME_RUNS):
        async with open_session(suite.url) as socket:
            turns.append(await speak_turn(socket, question.samples))
    first = [t.speech_end_to_first_audio for t in turns if t.speech_end_to_first_audio is not None]
    if len(first) < len(turns):
        raise RuntimeError("a realtime turn brought no audio")
    legs = [
        {
            "stopped": turn.speech_end_to_stopped,
            "transcript": turn.speech_end_to_transcript,
            "first_audio": turn.speech_end_to_first_audio,
        }
        for turn in turns
    ]
    name = "realtime_speech_end_to_first_audio_p50"
    report.add(name, statistics.median(first) * 1000, legs)


async def main() -> int:
    """Runs every measurement; the exit status."""
    configure_logging("bench", level="error")
    report = Report("demo")
    settings = EdgeSettings(port=PORT_BASE, run_dir=Path("run/bars-demo"))
    await measure_start(report, settings)
    async with Suite(settings) as suite, open_client(suite.url) as client:
        await measure_chat(report, client)
        await measure_company(report, client)
        await measure_speech(report, client)
        await measure_realtime(report, suite, client)
    return report.finish()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
