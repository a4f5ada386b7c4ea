"""Entry of the model process: ``python -m antiphon_vocoder.engine``."""

from __future__ import annotations

import sys

from antiphon_core.ipc.endpoint import Endpoint, WorkerEndpoint

from antiphon_vocoder.messages import (
    EngineConfig,
    EngineFailed,
    EngineInbound,
    EnginePhase,
    EngineReady,
    Stop,
)


def main() -> None:
    """Boots from the first message and serves until told to stop."""
    endpoint = WorkerEndpoint.from_argv(sys.argv[1:], inbound=EngineInbound)
    try:
        serve(endpoint)
    finally:
        endpoint.close()


def serve(endpoint: Endpoint) -> None:
    """Loads the default voice and runs the loop; a failed boot is reported, not raised."""
    endpoint.wait(None)
    first, *rest = endpoint.drain()
    if isinstance(first, Stop):
        return
    if not isinstance(first, EngineConfig):
        raise TypeError(f"the first message must be EngineConfig, got {type(first).__name__}")
    endpoint.send(EnginePhase("import"))
    from antiphon_vocoder.engine.loop import EngineLoop
    from antiphon_vocoder.engine.voices import LoadedVoices, warm_up

    default = first.voices[0].id
    voices = LoadedVoices(first.voices, first.threads)
    endpoint.send(EnginePhase("load"))
    try:
        voice = voices.get(default)
    except (ValueError, OSError) as error:
        endpoint.send(EngineFailed(f"voice {default}: {error}"))
        return
    endpoint.send(EnginePhase("warm_up"))
    cost = warm_up(voice)
    loop = EngineLoop(endpoint, first, voices)
    loop.accept(rest)
    endpoint.send(
        EngineReady(
            voice=default, cost=cost, windowed=voice.windowed, whole_reason=voice.not_splittable
        )
    )
    loop.run()


if __name__ == "__main__":
    main()
