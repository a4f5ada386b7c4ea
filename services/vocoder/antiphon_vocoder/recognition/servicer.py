"""RecognitionService: the wire's streams on one side, sessions of the worker on the other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import IO, TYPE_CHECKING, TypeVar

import grpc
from antiphon.vocoder.v1 import recognition_service_pb2 as pb
from antiphon.vocoder.v1 import recognition_service_pb2_grpc as pb_grpc
from antiphon_core.errors import AntiphonError, DeadlineExceeded, Internal, InvalidArgument

from antiphon_vocoder.recognition import convert
from antiphon_vocoder.recognition import messages as wire
from antiphon_vocoder.recognition.multiplex import RecognitionMultiplexer
from antiphon_vocoder.recognition.session import Session

if TYPE_CHECKING:
    from antiphon_vocoder.recognition.service import RecognitionRuntime

_MIB = 1 << 20
_Request = TypeVar("_Request", pb.StreamingRecognizeRequest, pb.RecognizeRequest)


class RecognitionServicer(pb_grpc.RecognitionServiceServicer):
    """Serves one runtime."""

    def __init__(self, runtime: RecognitionRuntime) -> None:
        self._runtime = runtime

    async def StreamingRecognize(
        self,
        request_iterator: AsyncIterator[pb.StreamingRecognizeRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[pb.StreamingRecognizeResponse]:
        """See the proto."""
        runtime = self._runtime
        first = await self._next_request(request_iterator)
        if first is None or first.WhichOneof("message") != "config":
            raise convert.protocol_error("the first message must be config", "config")
        options = convert.stream_options(first.config, runtime.settings, runtime.recognizer)
        with runtime.stream_session(options) as session:
            ready = await session.next()
            if not isinstance(ready, wire.StreamReady):
                raise Internal(f"the worker answered {type(ready).__name__} to a new stream")
            yield convert.ready_response(ready, runtime.settings.model_name)
            reader = asyncio.create_task(self._forward(request_iterator, session))
            try:
                while True:
                    message = await session.next()
                    response = convert.stream_response(message)
                    if response is not None:
                        yield response
                    if isinstance(message, wire.StreamFinished):
                        return
            finally:
                reader.cancel()
                with suppress(asyncio.CancelledError):
                    await reader

    async def StreamingRecognizeMany(
        self,
        request_iterator: AsyncIterator[pb.StreamingRecognizeManyRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[pb.StreamingRecognizeManyResponse]:
        """See the proto."""
        many = RecognitionMultiplexer(self._runtime)
        async with aclosing(many.run(request_iterator)) as responses:
            async for response in responses:
                yield response

    async def Recognize(
        self,
        request_iterator: AsyncIterator[pb.RecognizeRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[pb.RecognizeResponse]:
        """See the proto."""
        runtime = self._runtime
        first = await self._next_request(request_iterator)
        if first is None or first.WhichOneof("message") != "config":
            raise convert.protocol_error("the first message must be config", "config")
        with (
            runtime.file_session() as session,
            tempfile.NamedTemporaryFile(prefix="antiphon-recognize-") as spool,
        ):
            request = convert.file_request(
                first.config,
                runtime.settings,
                runtime.recognizer,
                job=session.number,
                path=spool.name,
            )
            await self._spool(request_iterator, spool)
            session.send(request)
            while True:
                message = await session.next()
                if isinstance(message, wire.FileSegment):
                    segment = convert.segment_message(message.segment)
                    yield pb.RecognizeResponse(segment=segment)
                elif isinstance(message, wire.FileFinished):
                    yield pb.RecognizeResponse(
                        finished=pb.RecognizeFinished(
                            text=message.text,
                            language=message.language,
                            audio_duration=convert.duration(message.audio_seconds),
                            duration=convert.duration(message.elapsed_seconds),
                        )
                    )
                    return

    async def ListRecognizers(
        self, request: pb.ListRecognizersRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListRecognizersResponse:
        """See the proto."""
        settings, info = self._runtime.settings, self._runtime.recognizer
        return pb.ListRecognizersResponse(
            recognizers=[
                pb.Recognizer(
                    id=settings.model_name,
                    languages=info.languages,
                    translates=info.translates,
                    aliases=settings.aliases,
                    diarizes=info.diarizes,
                )
            ]
        )

    async def _next_request(self, requests: AsyncIterator[_Request]) -> _Request | None:
        """The caller's next message; None where its input ended.

        Raises:
            DeadlineExceeded: INPUT_IDLE; a call that says nothing does not hold its place.
        """
        limit = self._runtime.settings.stream_idle_seconds
        try:
            async with asyncio.timeout(limit):
                return await anext(requests, None)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the stream had no message for {limit:g} s", reason="INPUT_IDLE"
            ) from None

    async def _forward(
        self, requests: AsyncIterator[pb.StreamingRecognizeRequest], session: Session
    ) -> None:
        """Passes the caller's messages on; a wrong one ends the session with its error."""
        try:
            while (request := await self._next_request(requests)) is not None:
                await _forward_one(request, session)
            session.send(wire.EndInput(session.number))
        except AntiphonError as error:
            session.end(error)
        except Exception as error:  # the handler waits for the session, not for this task
            session.end(Internal(f"reading the stream failed: {error}"))

    async def _spool(self, requests: AsyncIterator[pb.RecognizeRequest], spool: IO[bytes]) -> None:
        limit = self._runtime.settings.max_file_mib * _MIB
        total = 0
        while (request := await self._next_request(requests)) is not None:
            if request.WhichOneof("message") != "audio":
                raise convert.protocol_error("only audio may follow config", "audio")
            convert.check_size(request.audio)
            total += len(request.audio)
            if total > limit:
                raise InvalidArgument(
                    f"the file is larger than {limit // _MIB} MiB",
                    reason="TOO_LARGE",
                    field="audio",
                    metadata={"limit": str(limit)},
                )
            await asyncio.to_thread(spool.write, request.audio)
        if total == 0:
            raise InvalidArgument("the file is empty", reason="INVALID_AUDIO", field="audio")
        await asyncio.to_thread(spool.flush)


async def _forward_one(request: pb.StreamingRecognizeRequest, session: Session) -> None:
    command = convert.stream_command(request, session.number)
    if isinstance(command, wire.Audio):
        await session.send_audio(command.data)
    else:
        session.send(command)
