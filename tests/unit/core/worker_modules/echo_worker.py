"""The worker process of the ipc tests: answers pings, dies on demand."""

from __future__ import annotations

import os
import sys

from antiphon_core.ipc.endpoint import Endpoint, WorkerEndpoint
from echo_messages import (
    Die,
    Emit,
    LastWords,
    Ping,
    Pong,
    Shutdown,
    Start,
    Stray,
    ToWorker,
    Up,
)


def serve(endpoint: Endpoint) -> int:
    """Runs until told to end; returns the exit status."""
    while True:
        endpoint.wait(None)
        for message in endpoint.drain():
            match message:
                case Start(label=label):
                    endpoint.send(Up(label, os.getpid()))
                case Ping(number=number):
                    endpoint.send(Pong(number))
                case Emit(count=count, unknown=unknown):
                    for number in range(count):
                        endpoint.send(Pong(number))
                    if unknown:
                        endpoint.send(Stray())
                case Die(code=code):
                    endpoint.send(LastWords("leaving"))
                    return code
                case Shutdown():
                    return 0


if __name__ == "__main__":
    connection = WorkerEndpoint.from_argv(sys.argv[1:], inbound=ToWorker)
    status = serve(connection)
    connection.close()
    sys.exit(status)
