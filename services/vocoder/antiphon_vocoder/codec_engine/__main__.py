"""Entry of the codec process: ``python -m antiphon_vocoder.codec_engine``."""

from __future__ import annotations

import sys

from antiphon_core.ipc.endpoint import Endpoint, WorkerEndpoint
from antiphon_core.logs import configure_logging

from antiphon_vocoder.codec_messages import (
    CodecEngineConfig,
    CodecEngineFailed,
    CodecEngineInbound,
    CodecPhase,
)
from antiphon_vocoder.messages import Stop


def main() -> None:
    """Boots from the first message and serves until told to stop."""
    configure_logging("vocoder-codec")
    endpoint = WorkerEndpoint.from_argv(sys.argv[1:], inbound=CodecEngineInbound)
    try:
        serve(endpoint)
    finally:
        endpoint.close()


def serve(endpoint: Endpoint) -> None:
    """Loads the codecs and runs the loop; a failed boot is reported, not raised."""
    endpoint.wait(None)
    first, *rest = endpoint.drain()
    if isinstance(first, Stop):
        return
    if not isinstance(first, CodecEngineConfig):
        raise TypeError(f"the first message must be CodecEngineConfig, got {type(first).__name__}")
    endpoint.send(CodecPhase("import"))
    try:
        from antiphon_vocoder.codec.registry import load
        from antiphon_vocoder.codec_engine.boot import boot
    except ImportError as error:
        endpoint.send(CodecEngineFailed(f"{error}; install antiphon-vocoder[codecs]"))
        return
    try:
        loop = boot(endpoint, first, load)
    except (ValueError, OSError) as error:
        endpoint.send(CodecEngineFailed(str(error)))
        return
    loop.accept(rest)
    loop.run()


if __name__ == "__main__":
    main()
