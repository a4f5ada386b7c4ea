"""The phonemizer process: ``python -m antiphon_vocoder.text.worker``."""

from __future__ import annotations

import sys

from antiphon_core.ipc.endpoint import Endpoint, WorkerEndpoint

from antiphon_vocoder.messages import (
    PhonemizeReply,
    PhonemizeRequest,
    PhonemizerInbound,
    PhonemizerReady,
    Stop,
)
from antiphon_vocoder.text.espeak import Espeak, EspeakError


def serve(endpoint: Endpoint) -> None:
    """Answers requests in order until told to stop."""
    try:
        espeak = Espeak()
    except EspeakError as error:
        endpoint.send(PhonemizerReady(error=str(error)))
        endpoint.wait(None)
        return
    endpoint.send(PhonemizerReady(version=espeak.version))
    while True:
        endpoint.wait(None)
        for message in endpoint.drain():
            if isinstance(message, Stop):
                return
            if isinstance(message, PhonemizeRequest):
                endpoint.send(_answer(espeak, message))


def _answer(espeak: Espeak, request: PhonemizeRequest) -> PhonemizeReply:
    try:
        return PhonemizeReply(request.id, phonemes=espeak.phonemes(request.text, request.voice))
    except EspeakError as error:
        return PhonemizeReply(request.id, error=str(error))


def main() -> None:
    """Runs the worker that a WorkerProcess started."""
    endpoint = WorkerEndpoint.from_argv(sys.argv[1:], inbound=PhonemizerInbound)
    serve(endpoint)
    endpoint.close()


if __name__ == "__main__":
    main()
