"""The worker's end of the message channel: threads do all encoding and socket work.

This module imports no gRPC, so that a compute process stays small.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import zmq

from antiphon_core.ipc.codec import Codec, MessageDecodeError
from antiphon_core.ipc.inbox import Inbox
from antiphon_core.ipc.supervision import die_with_parent, exit_if_orphaned

_PARENT_CHECK_MILLISECONDS = 1000


class Endpoint(Protocol):
    """What a worker's loop needs: its inbox and a way to answer."""

    def drain(self) -> list[object]:
        """All messages so far, without waiting.

        Raises:
            MessageDecodeError: the parent sent an unknown message; the worker must end.
            TypeError: an earlier ``send`` got something that cannot be encoded.
        """
        ...

    def wait(self, timeout: float | None) -> bool:
        """Blocks until a message (or failure) is there; False after ``timeout`` seconds."""
        ...

    def send(self, message: object) -> None:
        """Queues a message; from any thread, never blocks. It must not be changed afterwards."""
        ...

    def close(self, flush_seconds: float = 2.0) -> None:
        """Sends what is queued, for at most so many seconds, and ends the channel."""
        ...


class WorkerEndpoint:
    """The Endpoint of a worker process, connected to the WorkerProcess that started it.

    Args:
        receive_address: ipc address that this end binds.
        send_address: ipc address that this end connects to.
        inbound: union of the structs that the parent sends.
        parent_pid: when given, the process ends with its parent.
    """

    def __init__(
        self, receive_address: str, send_address: str, *, inbound: Any, parent_pid: int | None
    ) -> None:
        self._parent_pid = parent_pid
        self._codec = Codec(inbound)
        self._inbox = Inbox()
        self._outbox = Inbox()
        self._closing = False
        self._flush_seconds = 2.0
        self._context = zmq.Context()
        receiver = self._context.socket(zmq.PAIR)
        receiver.setsockopt(zmq.LINGER, 0)
        receiver.setsockopt(zmq.RCVHWM, 0)
        receiver.setsockopt(zmq.RCVTIMEO, _PARENT_CHECK_MILLISECONDS)
        receiver.bind(receive_address)
        sender = self._context.socket(zmq.PAIR)
        sender.setsockopt(zmq.SNDHWM, 0)
        sender.connect(send_address)
        self._sender_thread = threading.Thread(
            target=self._send_loop, args=(sender,), name="ipc-send", daemon=True
        )
        self._receiver_thread = threading.Thread(
            target=self._receive_loop, args=(receiver,), name="ipc-receive", daemon=True
        )
        self._sender_thread.start()
        self._receiver_thread.start()

    @classmethod
    def from_argv(cls, argv: Sequence[str], *, inbound: Any) -> WorkerEndpoint:
        """Connects a process that WorkerProcess started; call it before slow imports.

        Args:
            argv: the arguments without the program name; others than the ipc ones are ignored.
            inbound: union of the structs that the parent sends.

        Raises:
            SystemExit: 2 without the ipc arguments.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--ipc-receive", required=True)
        parser.add_argument("--ipc-send", required=True)
        parser.add_argument("--ipc-parent", type=int, required=True)
        known, _ = parser.parse_known_args(list(argv))
        die_with_parent(known.ipc_parent)
        return cls(known.ipc_receive, known.ipc_send, inbound=inbound, parent_pid=known.ipc_parent)

    def drain(self) -> list[object]:
        """See Endpoint."""
        return self._inbox.drain()

    def wait(self, timeout: float | None) -> bool:
        """See Endpoint."""
        return self._inbox.wait(timeout)

    def send(self, message: object) -> None:
        """See Endpoint."""
        self._outbox.put(message)

    def close(self, flush_seconds: float = 2.0) -> None:
        """See Endpoint. A second call does nothing."""
        if self._closing:
            return
        self._flush_seconds = flush_seconds
        self._closing = True
        self._outbox.fail(_Closed())
        self._sender_thread.join(flush_seconds)
        # Waits for the lingering socket, and ends the receiver's blocking read.
        self._context.term()
        self._receiver_thread.join(1.0)

    def _send_loop(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while True:
                self._outbox.wait(None)
                for message in self._outbox.drain():
                    socket.send(self._codec.encode(message))
        except _Closed:
            socket.close(linger=int(self._flush_seconds * 1000))
        except Exception as error:
            self._inbox.fail(error)
            socket.close(linger=int(self._flush_seconds * 1000))

    def _receive_loop(self, socket: zmq.Socket[bytes]) -> None:
        try:
            while True:
                try:
                    data = socket.recv()
                except zmq.Again:
                    if self._parent_pid is not None:
                        exit_if_orphaned(self._parent_pid)
                    continue
                self._inbox.put(self._codec.decode(data))
        except zmq.ContextTerminated:
            pass
        except (MessageDecodeError, zmq.ZMQError) as error:
            self._inbox.fail(error)
        finally:
            socket.close(linger=0)


class _Closed(Exception):
    """Ends the send loop after the last queued message."""
