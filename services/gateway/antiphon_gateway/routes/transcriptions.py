"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from collections.abc import AsyncIterator

from antiphon_core.errors import AntiphonError, Internal, InvalidArgument
from msgspec import UNSET

from antiphon_gateway.clients import Backends, FileRecognitionStream
from antiphon_gateway.convert.transcription import form_of, logprobs_of, response_of
from antiphon_gateway.domain.recognition import (
    FileEvent,
    FileFinished,
    RecognitionConfig,
    TranscriptSegment,
)
from antiphon_gateway.http import (
    Headers,
    Receive,
    Scope,
    Send,
    body_chunks,
    cancel_on_disconnect,
    header,
    send_response,
)
from antiphon_gateway.multipart import Form, UploadedFile, read_form
from antiphon_gateway.openai.audio import (
    DurationUsage,
    TokenLogprob,
    TranscriptDelta,
    TranscriptDone,
    TranscriptionForm,
)
from antiphon_gateway.openai.chat_output import sse_frame
from antiphon_gateway.openai.decode import apply_policies
from antiphon_gateway.openai.fields import TRANSCRIPTION, TRANSLATION, Policies
from antiphon_gateway.routes.common import gateway_of, strict_fields, write_failure
from antiphon_gateway.sse import StreamWriter

_PIECE_BYTES = 256 * 1024


class Transcriptions:
    """The route as a bare ASGI application.

    Args:
        translate: answer in English instead of the language spoken.
    """

    def __init__(self, *, translate: bool) -> None:
        self._translate = translate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = gateway_of(scope)
        limits = gateway.settings.limits
        upload = await read_form(body_chunks(receive), header(scope, b"content-type"), "file")
        policies, endpoint = (
            (TRANSLATION, "translations") if self._translate else (TRANSCRIPTION, "transcriptions")
        )
        headers = _apply_policies(upload, policies, endpoint, strict_fields(gateway))
        form = form_of({name: upload.fields[name] for name in upload.fields if name != "file"})
        file = _file_of(upload, limits.upload_bytes)
        config = self._config(form, gateway.backends, limits.request_seconds)
        writer = StreamWriter(send, limits)
        body, content_type = b"", b""
        async with (
            cancel_on_disconnect(receive),
            gateway.backends.recognition.recognize(config) as stream,
        ):
            await _send_file(stream, file)
            if form.stream:
                async with writer.watched():
                    await _write_events(writer, stream, headers, with_logprobs=bool(form.include))
            else:
                segments, finished = await _collect(stream)
                body, content_type = response_of(
                    form, segments, finished, translate=self._translate
                )
        if form.stream:
            await writer.end()
        else:
            await send_response(send, 200, body, content_type=content_type, headers=headers)

    def _config(
        self, form: TranscriptionForm, backends: Backends, timeout: float
    ) -> RecognitionConfig:
        model = backends.recognition.resolve(form.model)
        if self._translate:
            _require_translation(model, backends)
        return RecognitionConfig(
            model=model,
            language=form.language,
            translate=self._translate,
            words="word" in form.timestamp_granularities,
            logprobs="logprobs" in form.include,
            prompt=form.prompt,
            temperature=form.temperature,
            timeout=timeout,
        )


def _require_translation(model: str, backends: Backends) -> None:
    for recognizer in backends.recognizers:
        if recognizer.id == model or not model:
            if recognizer.translates:
                return
            break
    raise InvalidArgument(
        f"recogniser {model or 'default'!r} does not translate to English",
        reason="UNSUPPORTED_OPTION",
        field="model",
        allowed=[item.id for item in backends.recognizers if item.translates],
    )


def _apply_policies(
    upload: Form, policies: Policies, endpoint: str, strict_fields: bool
) -> list[tuple[bytes, bytes]]:
    given = {name.partition("[")[0]: values[-1].encode() for name, values in upload.fields.items()}
    return apply_policies(given, policies, endpoint=endpoint, strict_fields=strict_fields)


def _file_of(upload: Form, limit: int) -> UploadedFile:
    file = upload.file
    if file is None:
        raise InvalidArgument(
            "file is required as a form field with a file name",
            reason="MISSING_FIELD",
            field="file",
        )
    if not file.data:
        raise InvalidArgument("file is empty", reason="INVALID_AUDIO", field="file")
    if len(file.data) > limit:
        raise InvalidArgument(
            f"file has {len(file.data)} bytes; at most {limit} are allowed",
            reason="TOO_LARGE",
            field="file",
            metadata={"limit": str(limit), "observed": str(len(file.data))},
        )
    return file


async def _send_file(stream: FileRecognitionStream, file: UploadedFile) -> None:
    view = memoryview(file.data)
    for start in range(0, len(view), _PIECE_BYTES):
        await stream.send_bytes(bytes(view[start : start + _PIECE_BYTES]))
    await stream.end_input()


async def _collect(
    stream: AsyncIterator[FileEvent],
) -> tuple[list[TranscriptSegment], FileFinished]:
    segments: list[TranscriptSegment] = []
    async for event in stream:
        if isinstance(event, FileFinished):
            return segments, event
        segments.append(event)
    raise Internal("the recognition service ended without a result")


async def _write_events(
    writer: StreamWriter,
    stream: AsyncIterator[FileEvent],
    headers: Headers,
    *,
    with_logprobs: bool,
) -> None:
    """Deltas whose joined text is the text of ``done``.

    The status is committed with the first event, so undecodable audio still gets its own.
    """
    event = await anext(stream)
    await writer.start(headers)
    text = ""
    tokens: list[TokenLogprob] = []
    try:
        while not isinstance(event, FileFinished):
            piece = event.text if text else event.text.lstrip()
            if piece:
                text += piece
                new = logprobs_of([event])
                tokens += new
                delta = TranscriptDelta(piece, logprobs=new if with_logprobs else UNSET)
                await writer.write(sse_frame(delta))
            event = await anext(stream)
        usage = DurationUsage(round(event.audio_seconds, 3))
        done = TranscriptDone(text, usage, logprobs=tokens if with_logprobs else UNSET)
        await writer.write(sse_frame(done))
    except AntiphonError as error:
        await write_failure(writer, error)
