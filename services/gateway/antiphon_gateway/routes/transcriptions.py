"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial

from antiphon_core.errors import AntiphonError, Internal, InvalidArgument
from msgspec import UNSET

from antiphon_gateway.clients import Backends, FileRecognitionStream
from antiphon_gateway.convert.diarization import diarized_segment
from antiphon_gateway.convert.transcription import config_of, form_of, logprobs_of, response_of
from antiphon_gateway.domain.recognition import (
    FileEvent,
    FileFinished,
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
    MAX_REFERENCE_CHARACTERS,
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
        backends = gateway.backends
        upload = await read_form(
            body_chunks(receive),
            header(scope, b"content-type"),
            "file",
            field_bytes={
                "file": limits.upload_bytes,
                "known_speaker_references": MAX_REFERENCE_CHARACTERS,
            },
            on_file=partial(_refuse_early, backends),
        )
        policies, endpoint = (
            (TRANSLATION, "translations") if self._translate else (TRANSCRIPTION, "transcriptions")
        )
        headers = _apply_policies(upload, policies, endpoint, strict_fields(gateway))
        form = form_of({n: v for n, v in upload.fields.items() if n.partition("[")[0] in policies})
        file = _file_of(upload)
        model = self._recognizer(form, backends)
        config = config_of(form, model, translate=self._translate, timeout=limits.request_seconds)
        writer = StreamWriter(send, limits)
        body, content_type = b"", b""
        async with (
            cancel_on_disconnect(receive),
            backends.recognition.recognize(config) as stream,
        ):
            await _send_file(stream, file)
            if form.stream:
                async with writer.watched():
                    await _write_events(writer, stream, headers, form)
            else:
                segments, finished = await _collect(stream)
                body, content_type = response_of(
                    form, segments, finished, translate=self._translate
                )
        if form.stream:
            await writer.end()
        else:
            await send_response(send, 200, body, content_type=content_type, headers=headers)

    def _recognizer(self, form: TranscriptionForm, backends: Backends) -> str:
        model = backends.recognition.resolve(form.model)
        if self._translate:
            able = [item.id for item in backends.recognizers if item.translates]
            _require(able, model, backends, "translate to English", "UNSUPPORTED_OPTION", "model")
        elif form.response_format == "diarized_json":
            _require_diarization(model, backends)
        return model


def _refuse_early(backends: Backends, begun: Form) -> None:
    """Refuses what cannot be served before a file is read whose client names the model first."""
    if "model" in begun.fields and begun.fields.get("response_format") == ["diarized_json"]:
        _require_diarization(backends.recognition.resolve(begun.fields["model"][-1]), backends)


def _require_diarization(model: str, backends: Backends) -> None:
    able = [item.id for item in backends.recognizers if item.diarizes]
    reason, field = "SPEAKER_MODEL_MISSING", "response_format"
    _require(able, model, backends, "say who speaks", reason, field)


def _require(
    able: Sequence[str], model: str, backends: Backends, what: str, reason: str, field: str
) -> None:
    """Refuses what the recogniser, the first for an empty model, cannot do."""
    name = model or next((item.id for item in backends.recognizers), "")
    if name not in able:
        raise InvalidArgument(
            f"recogniser {name!r} does not {what}", reason=reason, field=field, allowed=able
        )


def _apply_policies(
    upload: Form, policies: Policies, endpoint: str, strict_fields: bool
) -> list[tuple[bytes, bytes]]:
    given = {name.partition("[")[0]: values[-1].encode() for name, values in upload.fields.items()}
    return apply_policies(given, policies, endpoint=endpoint, strict_fields=strict_fields)


def _file_of(upload: Form) -> UploadedFile:
    file = upload.file
    if file is None:
        raise InvalidArgument(
            "file is required as a form field with a file name",
            reason="MISSING_FIELD",
            field="file",
        )
    if not file.data:
        raise InvalidArgument("file is empty", reason="INVALID_AUDIO", field="file")
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
    form: TranscriptionForm,
) -> None:
    """Deltas whose joined text is the text of ``done``; after each its segment, if diarised.

    The status is committed with the first event, so undecodable audio still gets its own.
    """
    event = await anext(stream)
    await writer.start(headers)
    text = ""
    number = 0
    tokens: list[TokenLogprob] = []
    try:
        while not isinstance(event, FileFinished):
            number += 1
            piece = event.text if text else event.text.lstrip()
            if piece:
                text += piece
                new = logprobs_of([event])
                tokens += new
                delta = TranscriptDelta(piece, logprobs=new if form.include else UNSET)
                segment = None
                if form.response_format == "diarized_json" and piece.strip():
                    segment = diarized_segment(event, number)
                    delta.segment_id = segment.id
                await writer.write(sse_frame(delta) + (sse_frame(segment) if segment else b""))
            event = await anext(stream)
        usage = DurationUsage(round(event.audio_seconds, 3))
        done = TranscriptDone(text, usage, logprobs=tokens if form.include else UNSET)
        await writer.write(sse_frame(done))
    except AntiphonError as error:
        await write_failure(writer, error)
