"""Outgoing channels that carry the request context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc

from antiphon_core.rpc.context import current, to_metadata
from antiphon_core.rpc.options import CHANNEL_OPTIONS
from antiphon_core.rpc.outcome import keep_status

Metadata = Iterable[tuple[str, str | bytes]] | None


def open_channel(target: str) -> grpc.aio.Channel:
    """A channel to ``host:port`` or ``unix:path``; close it with ``await channel.close()``.

    Each call carries request id, traceparent, tenant and priority of the current request, and
    its deadline where the call names no timeout.
    """
    return ContextChannel(grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS))


class ContextChannel(grpc.aio.Channel):
    """Adds metadata at the call itself.

    gRPC's client interceptors would do too, but they put a queue and a generator between the
    caller and each message of a stream.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def __aenter__(self) -> grpc.aio.Channel:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        await self._channel.__aexit__(*exc_info)

    async def close(self, grace: float | None = None) -> None:
        """Ends all calls, after ``grace`` seconds if given."""
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Connectivity now."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Until the connectivity differs from the given one."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Until a connection is there."""
        await self._channel.channel_ready()

    def unary_unary(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _with_context(self._channel.unary_unary(*args, **options))

    def unary_stream(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _with_context(self._channel.unary_stream(*args, **options))

    def stream_unary(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _keeping_status(_with_context(self._channel.stream_unary(*args, **options)))

    def stream_stream(self, *args: Any, **options: Any) -> Any:
        """See grpc.aio.Channel."""
        return _keeping_status(_with_context(self._channel.stream_stream(*args, **options)))


def _with_context(multi_callable: Callable[..., Any]) -> Callable[..., Any]:
    def call(
        *args: Any, timeout: float | None = None, metadata: Metadata = (), **options: Any
    ) -> Any:
        context = current()
        given = tuple(metadata or ())
        names = {name for name, _ in given}
        carried = tuple(pair for pair in to_metadata(context) if pair[0] not in names)
        return multi_callable(
            *args,
            timeout=context.remaining() if timeout is None else timeout,
            metadata=carried + given,
            **options,
        )

    return call


def _keeping_status(multi_callable: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **options: keep_status(multi_callable(*args, **options))
