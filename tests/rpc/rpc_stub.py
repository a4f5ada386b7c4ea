"""A scripted service over all four call kinds, on a real server and a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.rpc.channel import open_channel
from antiphon_core.rpc.server import RpcServer
from google.protobuf.wrappers_pb2 import StringValue

SERVICE = "antiphon.test.v1.ScriptService"


class ScriptServicer:
    """Runs the test's ``script(text)`` for each request; records how handlers end."""

    def __init__(self) -> None:
        self.script: Callable[[str], Awaitable[str]] = _echo
        self.cleaned = asyncio.Event()
        self.entered = asyncio.Event()

    async def unary_unary(self, request: StringValue, context: Any) -> StringValue:
        self.entered.set()
        try:
            return StringValue(value=await self.script(request.value))
        finally:
            self.cleaned.set()

    async def unary_stream(self, request: StringValue, context: Any) -> AsyncIterator[StringValue]:
        self.entered.set()
        try:
            for number in range(10_000):
                yield StringValue(value=await self.script(f"{request.value}{number}"))
        finally:
            self.cleaned.set()

    async def unary_stream_by_write(self, request: StringValue, context: Any) -> None:
        await context.write(StringValue(value="written"))
        await context.write(StringValue(value=await self.script(request.value)))

    async def stream_unary(self, requests: AsyncIterator[StringValue], context: Any) -> StringValue:
        texts = [request.value async for request in requests]
        return StringValue(value=await self.script("+".join(texts)))

    async def stream_stream(
        self, requests: AsyncIterator[StringValue], context: Any
    ) -> AsyncIterator[StringValue]:
        self.entered.set()
        try:
            async for request in requests:
                yield StringValue(value=await self.script(request.value))
        finally:
            self.cleaned.set()


class ScriptStub:
    """What generated code would be."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        codec = {
            "request_serializer": StringValue.SerializeToString,
            "response_deserializer": StringValue.FromString,
        }
        path = f"/{SERVICE}/"
        self.unary_unary = channel.unary_unary(path + "UnaryUnary", **codec)
        self.unary_stream = channel.unary_stream(path + "UnaryStream", **codec)
        self.unary_stream_by_write = channel.unary_stream(path + "UnaryStreamByWrite", **codec)
        self.stream_unary = channel.stream_unary(path + "StreamUnary", **codec)
        self.stream_stream = channel.stream_stream(path + "StreamStream", **codec)


def add_script_servicer(servicer: ScriptServicer, server: grpc.aio.Server) -> None:
    """The generated ``add_XServicer_to_server``."""
    codec = {
        "request_deserializer": StringValue.FromString,
        "response_serializer": StringValue.SerializeToString,
    }
    handlers = {
        "UnaryUnary": grpc.unary_unary_rpc_method_handler(servicer.unary_unary, **codec),
        "UnaryStream": grpc.unary_stream_rpc_method_handler(servicer.unary_stream, **codec),
        "UnaryStreamByWrite": grpc.unary_stream_rpc_method_handler(
            servicer.unary_stream_by_write, **codec
        ),
        "StreamUnary": grpc.stream_unary_rpc_method_handler(servicer.stream_unary, **codec),
        "StreamStream": grpc.stream_stream_rpc_method_handler(servicer.stream_stream, **codec),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


class Bench:
    """A served ScriptServicer with a client."""

    def __init__(self) -> None:
        self.lifecycle = Lifecycle()
        self.servicer = ScriptServicer()
        self.server = RpcServer(service="test", bind="127.0.0.1:0", lifecycle=self.lifecycle)
        self.server.add(add_script_servicer, self.servicer, SERVICE)

    async def start(self) -> None:
        self.port = await self.server.start()
        self.channel = open_channel(f"127.0.0.1:{self.port}")
        self.stub = ScriptStub(self.channel)


async def _echo(text: str) -> str:
    return text
