"""The input of a stream: messages of a call, fed to its session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn, Protocol

from antiphon.vocoder.v1 import vocoder_service_pb2 as pb
from antiphon_core.errors import AntiphonError, InvalidArgument

from antiphon_vocoder.code_convert import code_frames
from antiphon_vocoder.code_session import CodeSession
from antiphon_vocoder.codes import CodePlan, checked_frames
from antiphon_vocoder.convert import speech_text
from antiphon_vocoder.encode_session import EncodeSession
from antiphon_vocoder.session import SpeechSession

Requests = AsyncIterator[Any]
Feed = Callable[[Any], None]


class Session(Protocol):
    """What serving a stream needs of its session."""

    async def run(self) -> None: ...
    async def wait_for_room(self) -> None: ...
    def end_input(self) -> None: ...
    def fail(self, error: AntiphonError) -> None: ...
    def close(self) -> None: ...


async def serve(requests: Requests, session: Session, feed: Feed) -> None:
    """Runs a session to its end while its input is read."""
    reader = asyncio.create_task(_read(requests, session, feed), name="speech-input")
    try:
        await session.run()
    finally:
        session.close()
        reader.cancel()


async def _read(requests: Requests, session: Session, feed: Feed) -> None:
    """Feeds the session; an error of the input becomes the stream's end."""
    try:
        async for message in requests:
            feed(message)
            await session.wait_for_room()
        session.end_input()
    except AntiphonError as error:
        session.fail(error)


def feed_text(message: pb.StreamSpeechRequest, session: SpeechSession) -> None:
    """One message behind the configuration of a stream of text.

    Raises:
        InvalidArgument: STREAM_PROTOCOL for one that has no place there, or TOO_LARGE.
    """
    kind = message.WhichOneof("message")
    if kind == "text":
        session.add_text(speech_text(message))
    elif kind == "flush":
        session.flush()
    elif kind == "clear":
        session.clear()
    else:
        out_of_place(kind, "codes do not fit input kind TEXT", ("text", "flush", "clear"))


def feed_codes(
    message: pb.StreamSpeechRequest | pb.DecodeCodesRequest, session: CodeSession, plan: CodePlan
) -> None:
    """As ``feed_text`` for a stream of codes; errors as ``checked_frames`` too."""
    kind = message.WhichOneof("message")
    if kind == "codes":
        session.add_frames(checked_frames(code_frames(message.codes), plan))
    elif kind == "flush":
        session.flush()
    elif kind == "clear":
        session.clear()
    else:
        out_of_place(kind, "text does not fit input kind CODES", ("codes", "flush", "clear"))


def feed_audio(message: pb.EncodeAudioRequest, session: EncodeSession) -> None:
    """As ``feed_text`` for a stream of audio."""
    kind = message.WhichOneof("message")
    if kind == "audio":
        session.add_audio(message.audio)
    else:
        out_of_place(kind, "", ("audio",))


def out_of_place(kind: str | None, mismatch: str, allowed: tuple[str, ...]) -> NoReturn:
    """Refuses a message.

    Args:
        kind: its field; None where none is set.
        mismatch: why another kind than those allowed does not fit.

    Raises:
        InvalidArgument: STREAM_PROTOCOL.
    """
    if kind == "config":
        problem = "config comes once, as the first message"
    elif kind is None:
        problem = "a message must have one of its fields set"
    else:
        problem = mismatch
    raise InvalidArgument(
        problem, reason="STREAM_PROTOCOL", field=kind or "message", allowed=allowed
    )
