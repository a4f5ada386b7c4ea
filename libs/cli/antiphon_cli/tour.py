"""The tour of `antiphon demo`: four steps through the public interfaces, each timed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console

from antiphon_cli.talk.audio import to_pcm16, write_wav
from antiphon_cli.talk.chat import stream_chat
from antiphon_cli.talk.http import open_client
from antiphon_cli.talk.realtime import open_session, speak_turn
from antiphon_cli.talk.speech import say, transcribe, word_error_rate

SENTENCE = "The quick brown fox jumps over the lazy dog."
QUESTION = "What is the capital of France?"
WORD_ERROR_LIMIT = 0.15


class StepFailed(Exception):
    """A step ran but its result is wrong; the message says how."""


class Tour:
    """Chat, speech, transcription and one realtime turn against the suite at ``url``."""

    def __init__(self, url: str, console: Console, artifacts: Path) -> None:
        self._url = url
        self._console = console
        self._artifacts = artifacts

    async def run(self) -> list[str]:
        """Runs every step and returns the names of those that failed."""
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("chat", self._chat),
            ("speech", self._speech),
            ("transcription", self._transcription),
            ("realtime", self._realtime),
        ]
        failed = []
        for number, (name, step) in enumerate(steps, start=1):
            self._console.print(f"[bold]{number}. {name}[/bold]")
            try:
                await step()
            except Exception as error:
                # A failed step must not hide the next ones; the exit status reports it.
                failed.append(name)
                self._console.print(f"   [red]failed:[/red] {error or type(error).__name__}")
        return failed

    def _line(self, text: str) -> None:
        self._console.print(f"   {text}", highlight=False, markup=False)

    async def _chat(self) -> None:
        self._line(f"> {QUESTION}")
        self._console.print("   ", end="")
        async with open_client(self._url) as client:
            answer = await stream_chat(
                client,
                [{"role": "user", "content": QUESTION}],
                on_text=lambda text: self._console.print(
                    text, end="", markup=False, highlight=False, soft_wrap=True
                ),
                max_tokens=96,
                temperature=0.0,
            )
        self._console.print()
        if not answer.text.strip():
            raise StepFailed("the answer is empty")
        self._line(
            f"first token after {answer.time_to_first_token * 1000:.0f} ms, {answer.tokens} tokens "
            f"at {answer.tokens_per_second:.0f} tokens/s"
        )

    async def _speech(self) -> None:
        self._line(f"say: {SENTENCE}")
        async with open_client(self._url) as client:
            spoken = await say(client, SENTENCE)
        path = self._artifacts / "speech.wav"
        write_wav(path, spoken.samples)
        self._line(
            f"{path}: {spoken.audio_seconds:.2f} s of audio, first audio after "
            f"{spoken.time_to_first_audio * 1000:.0f} ms, real-time factor "
            f"{spoken.real_time_factor:.3f}"
        )

    async def _transcription(self) -> None:
        path = self._artifacts / "speech.wav"
        async with open_client(self._url) as client:
            text = await transcribe(client, path.read_bytes(), path.name)
        errors = word_error_rate(SENTENCE, text)
        self._line(f"heard: {text.strip()}")
        self._line(f"word error rate {errors:.2f}")
        if errors > WORD_ERROR_LIMIT:
            raise StepFailed(f"word error rate above {WORD_ERROR_LIMIT}")

    async def _realtime(self) -> None:
        async with open_client(self._url) as client:
            question = await say(client, QUESTION)
        async with open_session(self._url) as socket:
            turn = await speak_turn(socket, question.samples)
        path = self._artifacts / "reply.wav"
        write_wav(path, turn.samples)
        self._line(f"you: {turn.transcript.strip()}")
        self._line(f"model: {turn.reply.strip()}")
        if turn.speech_end_to_first_audio is None or not to_pcm16(turn.samples).strip(b"\0"):
            raise StepFailed("the reply has no sound")
        self._line(
            f"{path}: speech end to first audio {turn.speech_end_to_first_audio * 1000:.0f} ms"
        )
