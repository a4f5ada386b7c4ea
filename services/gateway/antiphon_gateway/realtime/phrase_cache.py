"""Audio of acknowledgement phrases: made once for all sessions of a voice and format."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from antiphon_core.errors import AntiphonError
from antiphon_core.logs import get_logger
from msgspec.structs import replace

from antiphon_gateway.clients import Backends
from antiphon_gateway.domain import speech
from antiphon_gateway.realtime import inputs
from antiphon_gateway.realtime.commands import PreparePhrase

MAX_CACHED_BYTES = 16 * 1024 * 1024

log = get_logger(__name__)


class PhraseCache:
    """The newest phrases of all sessions, by voice, format, speed and text."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[speech.SpeechConfig, str], bytes] = OrderedDict()
        self._size = 0

    async def prepare(
        self, command: PreparePhrase, backends: Backends, report: Callable[[inputs.Input], None]
    ) -> None:
        """Reports the audio of a phrase, or none where it could not be made."""
        data = b""
        try:
            voice = backends.vocoder.resolve_voice(command.speech.voice)
            config = replace(command.speech, voice=voice)
            data = self._made.get((config, command.text), b"")
            if not data:
                data = await _speak(config, command.text, backends)
                self._keep((config, command.text), data)
        except AntiphonError as error:
            log.warning("phrase_failed", reason=error.reason, message=error.message[:300])
        report(inputs.PhraseReady(command.text, command.speech, data))

    def _keep(self, key: tuple[speech.SpeechConfig, str], data: bytes) -> None:
        self._size += len(data) - len(self._made.pop(key, b""))
        self._made[key] = data
        while self._size > MAX_CACHED_BYTES:
            _, dropped = self._made.popitem(last=False)
            self._size -= len(dropped)


async def _speak(config: speech.SpeechConfig, text: str, backends: Backends) -> bytes:
    data = bytearray()
    async with backends.vocoder.stream(config) as voice:
        await voice.send_text(text)
        await voice.end_input()
        async for event in voice:
            if isinstance(event, speech.AudioChunk):
                data += event.data
    return bytes(data)
