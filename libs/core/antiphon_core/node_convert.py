"""Lifecycle and node values to NodeAdminService messages."""

from __future__ import annotations

import json
import math

from antiphon.admin.v1 import node_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from antiphon_core.config import SettingValue
from antiphon_core.lifecycle import LifecycleSnapshot, State
from antiphon_core.node_types import NodeMeasures, RequestRecord, ServerInfo

_STATES = {
    State.NOT_STARTED: node_pb2.NODE_STATE_NOT_STARTED,
    State.BOOTING: node_pb2.NODE_STATE_BOOTING,
    State.READY: node_pb2.NODE_STATE_READY,
    State.DEGRADED: node_pb2.NODE_STATE_DEGRADED,
    State.DRAINING: node_pb2.NODE_STATE_DRAINING,
    State.STOPPED: node_pb2.NODE_STATE_STOPPED,
    State.FAILED: node_pb2.NODE_STATE_FAILED,
    State.ASLEEP: node_pb2.NODE_STATE_ASLEEP,
}
_REASONS = {
    State.NOT_STARTED: node_pb2.NODE_REASON_BOOTING,
    State.BOOTING: node_pb2.NODE_REASON_BOOTING,
    State.DRAINING: node_pb2.NODE_REASON_DRAINING,
    State.STOPPED: node_pb2.NODE_REASON_DRAINING,
    State.ASLEEP: node_pb2.NODE_REASON_ASLEEP,
}
_GAUGES = (
    "slots_used",
    "slots_total",
    "running",
    "waiting",
    "waiting_batch",
    "kv_entries_used",
    "kv_entries_cached",
    "kv_entries_total",
    "resident_bytes",
)


def status_message(
    service: str, snapshot: LifecycleSnapshot, measures: NodeMeasures, sequence: int, at: float
) -> node_pb2.NodeStatus:
    """The status of one instant; ``at`` in time.time() seconds."""
    status = node_pb2.NodeStatus(
        service=service,
        boot_id=snapshot.boot_id,
        sequence=sequence,
        state=_STATES[snapshot.state],
        reason=_reason(snapshot),
        reason_text=snapshot.reason,
        phase=snapshot.phase,
        phase_fraction=snapshot.fraction,
        models=measures.models,
        degraded=[
            node_pb2.DegradedComponent(component=component, reason=reason)
            for component, reason in sorted(snapshot.degraded.items())
        ],
        worker_restarts=measures.worker_restarts,
        at=timestamp(at),
    )
    for name in _GAUGES:
        value = getattr(measures, name)
        if value is not None:
            setattr(status, name, value)
    if measures.tick_age is not None:
        status.tick_age.CopyFrom(duration(measures.tick_age))
    return status


def info_message(
    info: ServerInfo, boot_id: str, started_at: float
) -> node_pb2.GetServerInfoResponse:
    """Versions and limits."""
    return node_pb2.GetServerInfoResponse(
        service=info.service,
        version=info.version,
        commit=info.commit,
        boot_id=boot_id,
        started_at=timestamp(started_at),
        config_digest=info.config_digest,
        device=info.device,
        limits=info.limits,
        libraries=info.libraries,
        implementations=info.implementations,
    )


def request_message(record: RequestRecord) -> node_pb2.RequestRecord:
    """One request of the timeline."""
    return node_pb2.RequestRecord(
        request_id=record.request_id,
        operation=record.operation,
        model=record.model,
        arrived_at=timestamp(record.arrived_at),
        phases=[
            node_pb2.RequestPhase(
                name=phase.name,
                start=duration(phase.start),
                end=None if phase.end is None else duration(phase.end),
            )
            for phase in record.phases
        ],
        finish_reason=record.finish_reason,
        input_count=record.input_count,
        output_count=record.output_count,
    )


def config_message(row: SettingValue) -> node_pb2.ConfigEntry:
    """One setting; a secret has no value and an origin has no path."""
    return node_pb2.ConfigEntry(
        key=row.name,
        value_json="" if row.secret else json.dumps(row.value),
        origin=row.origin.split(" ", 1)[0],
    )


def timestamp(seconds: float) -> Timestamp:
    """time.time() seconds as a Timestamp."""
    fraction, whole = math.modf(seconds)
    return Timestamp(seconds=int(whole), nanos=int(fraction * 1e9))


def duration(seconds: float) -> Duration:
    """Seconds as a Duration."""
    fraction, whole = math.modf(seconds)
    return Duration(seconds=int(whole), nanos=int(fraction * 1e9))


def seconds(value: Duration) -> float:
    """A Duration as seconds."""
    return value.seconds + value.nanos / 1e9


def _reason(snapshot: LifecycleSnapshot) -> node_pb2.NodeReason:
    if snapshot.state is State.FAILED:
        if snapshot.booted:
            return node_pb2.NODE_REASON_LOOP_DEAD
        return node_pb2.NODE_REASON_BOOT_FAILED
    return _REASONS.get(snapshot.state, node_pb2.NODE_REASON_UNSPECIFIED)
