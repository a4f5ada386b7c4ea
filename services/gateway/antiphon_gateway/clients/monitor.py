"""The cached view of one backend: its status, renewed by the backend itself every second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
from antiphon.admin.v1 import node_pb2, node_pb2_grpc
from antiphon_core.errors import AntiphonError, Unavailable
from antiphon_core.logs import get_logger
from antiphon_core.rpc.streams import result, typed_errors

STALE_SECONDS = 3.0
"""A status older than this says nothing any more."""

STATES = ("ready", "starting", "draining", "asleep", "lost")
"""How a backend may look; a lost one does not answer any more, or has failed."""

_SECOND_LOOK_SECONDS = 0.5
_RECONNECT_SECONDS = 0.25
_CATALOG_SECONDS = 10.0
_INFO_SECONDS = 2.0
_SERVING = (node_pb2.NODE_STATE_READY, node_pb2.NODE_STATE_DEGRADED)

log = get_logger(__name__)


class BackendMonitor:
    """Follows one backend's WatchStatus and reloads its catalog when it comes up or changes.

    Args:
        name: ``llm``, ``vocoder`` or ``recognition``, for messages.
        target: the dialled target, for logs.
        channel: the channel to the backend.
        reload: reads what the backend serves; called when it becomes ready, after a restart,
            and every ten seconds.
    """

    def __init__(
        self,
        name: str,
        target: str,
        channel: grpc.aio.Channel,
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self.target = target
        self._stub: Any = node_pb2_grpc.NodeAdminServiceStub(channel)
        self._reload = reload
        self._status: node_pb2.NodeStatus | None = None
        self._is_fresh = False
        self._loaded_boot = ""
        self._loaded_at = 0.0
        self._was_ready = False
        self._started = 0

    @property
    def is_ready(self) -> bool:
        """Whether the last status is fresh, serving, and its catalog known."""
        return (
            self._is_fresh
            and self._status is not None
            and self._status.state in _SERVING
            and self._loaded_boot == self._status.boot_id
        )

    @property
    def reason(self) -> str:
        """``starting``, ``draining``, ``asleep`` or ``no_<name>_backend``; empty when ready."""
        if self.is_ready:
            return ""
        if self._is_fresh and self._status is not None:
            if self._status.state == node_pb2.NODE_STATE_DRAINING:
                return "draining"
            if self._status.state == node_pb2.NODE_STATE_ASLEEP:
                return "asleep"
            if self._status.state == node_pb2.NODE_STATE_FAILED:
                return f"no_{self.name}_backend"
        return f"no_{self.name}_backend" if self._was_ready else "starting"

    @property
    def state(self) -> str:
        """One of STATES."""
        reason = self.reason
        return "lost" if reason.startswith("no_") else reason or "ready"

    @property
    def free_slots(self) -> int:
        """Slots that the last status left, less what was sent there since; 0 without slots."""
        status = self._status
        if status is None or not status.HasField("slots_total"):
            return 0
        return status.slots_total - status.slots_used - self._started

    def note_start(self) -> None:
        """Work goes to this backend; the next status counts it."""
        self._started += 1

    @property
    def slots(self) -> tuple[int, int] | None:
        """Slots or rows in use and in all, of a fresh status; None where it does not say."""
        status = self._status
        if not self._is_fresh or status is None:
            return None
        if not status.HasField("slots_used") or not status.slots_total:
            return None
        return status.slots_used, status.slots_total

    async def limits(self) -> dict[str, int]:
        """What the backend advertises, such as ``max_rows`` and ``queue_limit``.

        Raises:
            AntiphonError: the call failed.
        """
        request = node_pb2.GetServerInfoRequest()
        info = await result(self._stub.GetServerInfo(request, timeout=_INFO_SECONDS))
        return dict(info.limits)

    def unavailable(self) -> Unavailable:
        """The error for work that needs this backend now."""
        phase = self._status.phase if self._is_fresh and self._status is not None else ""
        reason = self.reason
        if reason == "starting":
            return Unavailable(
                f"the {self.name} service is starting" + (f" (phase {phase})" if phase else ""),
                reason="BOOTING",
                metadata={"phase": phase},
                retry_after=1.0,
            )
        if reason == "draining":
            return Unavailable(
                f"the {self.name} service is draining", reason="DRAINING", retry_after=1.0
            )
        if reason == "asleep":
            return Unavailable(
                f"the {self.name} service sleeps; wake it first", reason="ASLEEP", retry_after=1.0
            )
        detail = self._status.reason_text if self._is_fresh and self._status is not None else ""
        return Unavailable(
            f"no {self.name} service is ready" + (f": {detail}" if detail else ""),
            reason="NO_BACKEND",
            retry_after=1.0,
        )

    async def run(self) -> None:
        """Follows the status until cancelled; reconnects for ever."""
        while True:
            call = self._stub.WatchStatus(node_pb2.WatchStatusRequest())
            try:
                with typed_errors(call):
                    await self._follow(call)
            except (AntiphonError, TimeoutError) as error:
                if self._is_fresh:
                    log.warning("backend_lost", backend=self.name, error=str(error)[:300])
            finally:
                self._is_fresh = False
                call.cancel()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _follow(self, call: Any) -> None:
        while True:
            message = await _read_before_stale(call)
            if message is grpc.aio.EOF:
                return
            self._status = message.status
            self._started = 0
            self._is_fresh = True
            if message.status.state in _SERVING and self._catalog_is_due:
                await self._reload()
                self._loaded_at = time.monotonic()
                if self._loaded_boot != message.status.boot_id:
                    log.info("backend_ready", backend=self.name, boot_id=message.status.boot_id)
                self._loaded_boot = message.status.boot_id
                self._was_ready = True

    @property
    def _catalog_is_due(self) -> bool:
        assert self._status is not None
        return (
            self._loaded_boot != self._status.boot_id
            or time.monotonic() - self._loaded_at > _CATALOG_SECONDS
        )


async def _read_before_stale(call: Any) -> Any:
    """The next status.

    Raises:
        TimeoutError: none came in STALE_SECONDS.
    """
    reading = asyncio.ensure_future(call.read())
    try:
        # The second wait is for a status that arrived while this process's own loop was held up.
        for seconds in (STALE_SECONDS - _SECOND_LOOK_SECONDS, _SECOND_LOOK_SECONDS):
            done, _ = await asyncio.wait((reading,), timeout=seconds)
            if done:
                return reading.result()
        raise TimeoutError(f"no status for {STALE_SECONDS:g} s")
    finally:
        reading.cancel()
