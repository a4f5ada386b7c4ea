"""The front's end of the message channel, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import zmq
from zmq.utils.monitor import recv_monitor_message

from antiphon_core.ipc.codec import Codec, MessageDecodeError

_MESSAGES_PER_TURN = 256


class FrontChannel:
    """Sends and receives messages of one worker generation.

    Each direction has a socket of its own; the receiver binds and the sender connects, so that
    sending queues at once, before the peer is up, and never blocks.

    Args:
        receive_address: ipc address that this end binds.
        send_address: ipc address that this end connects to.
        inbound: union of the structs that the worker sends.
        on_message: called on the event loop for each message, in order.
        on_protocol_error: called once for a message that cannot be decoded; reading ends.
    """

    def __init__(
        self,
        receive_address: str,
        send_address: str,
        *,
        inbound: Any,
        on_message: Callable[[object], None],
        on_protocol_error: Callable[[MessageDecodeError], None],
    ) -> None:
        self.receive_address = receive_address
        self.send_address = send_address
        self._codec = Codec(inbound)
        self._on_message = on_message
        self._on_protocol_error = on_protocol_error
        self._loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        self._receiver = self._context.socket(zmq.PAIR)
        self._receiver.setsockopt(zmq.RCVHWM, 0)
        self._receiver.setsockopt(zmq.LINGER, 0)
        self._links = self._receiver.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._is_linked = False
        self._receiver.bind(receive_address)
        self._sender = self._context.socket(zmq.PAIR)
        self._sender.setsockopt(zmq.SNDHWM, 0)
        self._sender.setsockopt(zmq.LINGER, 0)
        self._sender.setsockopt(zmq.RECONNECT_IVL, 10)
        self._sender.connect(send_address)
        self._descriptor = cast(int, self._receiver.getsockopt(zmq.FD))
        self._reading = True
        self._loop.add_reader(self._descriptor, self._on_readable)

    def send(self, message: object) -> None:
        """Encodes and queues a message.

        Raises:
            TypeError: the message cannot be encoded.
        """
        self._sender.send(self._codec.encode(message), zmq.NOBLOCK)

    def read_available(self, limit: int | None = None) -> bool:
        """Delivers up to ``limit`` received messages; False when more may be there."""
        count = 0
        while self._reading and (limit is None or count < limit):
            # Asked first, because an exception at the end of every wake costs as much as a message.
            if not cast(int, self._receiver.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return True
            try:
                message = self._codec.decode(self._receiver.recv(zmq.NOBLOCK))
            except MessageDecodeError as error:
                self._stop_reading()
                self._on_protocol_error(error)
                return True
            self._on_message(message)
            count += 1
        return not self._reading

    async def until_left(self, seconds: float) -> None:
        """Waits until all that a worker sent before it ended is there to be read.

        Its end alone does not say so: ZeroMQ reads in a thread of its own, which may be late on a
        busy machine, and tells of a lost link after the last message.

        Args:
            seconds: longest wait.
        """
        told = asyncio.Event()
        descriptor = cast(int, self._links.getsockopt(zmq.FD))
        self._loop.add_reader(descriptor, told.set)
        try:
            async with asyncio.timeout(seconds):
                while self._has_link():
                    await told.wait()
                    told.clear()
        except TimeoutError:
            pass
        finally:
            self._loop.remove_reader(descriptor)

    def close(self) -> None:
        """Drops what is queued and frees the sockets; a second call does nothing."""
        self._stop_reading()
        self._context.destroy(linger=0)

    def _on_readable(self) -> None:
        # ZeroMQ's descriptor signals only new activity: what a bounded turn leaves in the
        # socket would never signal again, so another turn is scheduled for it.
        if not self.read_available(_MESSAGES_PER_TURN):
            self._loop.call_soon(self._on_readable)

    def _has_link(self) -> bool:
        """Whether a worker is connected, as far as ZeroMQ's thread has seen."""
        while self._reading and self._links.poll(0):
            self._is_linked = recv_monitor_message(self._links)["event"] == zmq.EVENT_ACCEPTED
        return self._reading and self._is_linked

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)
