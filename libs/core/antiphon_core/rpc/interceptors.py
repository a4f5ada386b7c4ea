"""The server interceptor: request context, admission, error mapping, metrics."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, aclosing
from typing import Any

import grpc
from grpc_status import rpc_status

from antiphon_core import metrics
from antiphon_core.errors import AntiphonError, Internal, Unavailable
from antiphon_core.lifecycle import Lifecycle
from antiphon_core.logs import get_logger
from antiphon_core.rpc.calls import CallTracker
from antiphon_core.rpc.context import current, from_metadata, use_context
from antiphon_core.rpc.errors import from_rpc_error, to_status

NOT_STARTED = "x-antiphon-not-started"
"""Trailing metadata of a call refused before any work: a proxy may try another replica."""

Behaviour = Callable[[Any, grpc.aio.ServicerContext], Any]
Wrapped = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]

log = get_logger("rpc.server")


class ServiceInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler once.

    Args:
        lifecycle: admits calls of gated services.
        tracker: counts the calls of gated services.
    """

    def __init__(self, lifecycle: Lifecycle, tracker: CallTracker) -> None:
        self._lifecycle = lifecycle
        self._tracker = tracker
        self._gated: set[str] = set()
        self._open: set[str] = set()
        self._wrapped: dict[str, Any] = {}
        self._handled = metrics.counter(
            "grpc_server_handled_total", "RPCs that ended", ("method", "code")
        )
        self._seconds = metrics.histogram("grpc_server_seconds", "Duration of RPCs", ("method",))

    def gate(self, service_name: str, open_methods: Sequence[str] = ()) -> None:
        """Calls of this service are work: refused unless ready, counted while they run.

        Args:
            service_name: full name.
            open_methods: its methods that are no work.
        """
        self._gated.add(service_name)
        self._open.update(f"/{service_name}/{name}" for name in open_methods)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Called by gRPC for each call."""
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return handler
            wrapped = self._wrapped[method] = self._wrap(method, handler)
        return wrapped

    def _wrap(self, method: str, handler: Any) -> Any:
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.request_streaming and handler.response_streaming:
            call = self._guard(method, _stream_writer(handler.stream_stream))
            return grpc.stream_stream_rpc_method_handler(call, **codec)
        if handler.response_streaming:
            call = self._guard(method, _stream_writer(handler.unary_stream))
            return grpc.unary_stream_rpc_method_handler(call, **codec)
        if handler.request_streaming:
            call = self._guard(method, handler.stream_unary)
            return grpc.stream_unary_rpc_method_handler(call, **codec)
        return grpc.unary_unary_rpc_method_handler(
            self._guard(method, handler.unary_unary), **codec
        )

    def _guard(self, method: str, behaviour: Behaviour) -> Wrapped:
        """The handler with everything around it."""
        service_name = method.rsplit("/", 1)[0].lstrip("/")
        gated = service_name in self._gated and method not in self._open

        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
            started = time.perf_counter()
            code = grpc.StatusCode.OK
            with ExitStack() as stack:
                try:
                    request_context = from_metadata(
                        context.invocation_metadata() or (), context.time_remaining()
                    )
                    stack.enter_context(use_context(request_context))
                    if gated:
                        self._admit()
                        stack.enter_context(self._tracker.track())
                    response = await behaviour(request, context)
                    code = _set_code(context)
                    return response
                except grpc.aio.AbortError:
                    code = _set_code(context)
                    raise
                except grpc.aio.InternalError as error:
                    # A write to a client that is gone fails so when it beats the cancellation.
                    code = grpc.StatusCode.CANCELLED
                    raise asyncio.CancelledError("the client is gone") from error
                except asyncio.CancelledError:
                    code = grpc.StatusCode.CANCELLED
                    if not self._tracker.take_end():
                        raise
                    code = grpc.StatusCode.UNAVAILABLE
                    await _abort(context, _stopped())
                except Exception as error:
                    typed = _typed_error(error, method)
                    code = typed.code
                    await _abort(context, typed)
                finally:
                    self._handled.labels(method, code.name).inc()
                    self._seconds.labels(method).observe(time.perf_counter() - started)

        return handle

    def _admit(self) -> None:
        try:
            self._lifecycle.require_ready()
            if self._tracker.closed:
                raise _stopped()
        except Unavailable as error:
            error.metadata[NOT_STARTED] = "1"
            raise


def _stopped() -> Unavailable:
    return Unavailable("the service stops and ended this call", reason="DRAINING")


async def _abort(context: grpc.aio.ServicerContext, error: AntiphonError) -> None:
    not_started = error.metadata.pop(NOT_STARTED, "")
    status = rpc_status.to_status(to_status(error))
    trailing = tuple(status.trailing_metadata or ())
    if not_started:
        trailing += ((NOT_STARTED, not_started),)
    await context.abort(status.code, status.details or "", trailing)


def _typed_error(error: Exception, method: str) -> AntiphonError:
    """The domain error behind an exception; a defect is logged and does not leak its text."""
    cause = _domain_error(error)
    if cause is not None:
        return cause
    log.error("rpc_handler_failed", method=method, exc_info=error)
    return Internal(
        "the service failed; its log has the request id",
        metadata={"request_id": current().request_id},
    )


def _domain_error(error: BaseException) -> AntiphonError | None:
    """Looks through task groups and failed upstream calls."""
    if isinstance(error, AntiphonError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        return from_rpc_error(error)
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            found = _domain_error(member)
            if found is not None:
                return found
    return None


def _stream_writer(behaviour: Behaviour) -> Behaviour:
    """A generator handler as one that writes.

    gRPC abandons a generator that is cancelled between two messages; here it is closed at
    once, so that its ``finally`` frees what the call held.
    """
    if not inspect.isasyncgenfunction(behaviour):
        return behaviour

    async def write_all(request: Any, context: grpc.aio.ServicerContext) -> None:
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return write_all


def _set_code(context: grpc.aio.ServicerContext) -> grpc.StatusCode:
    """The code that the handler set by itself, else OK."""
    code = context.code()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(code, grpc.StatusCode):
        return code
    for known in grpc.StatusCode:
        if known.value[0] == code:
            return known
    return grpc.StatusCode.OK
