import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_STATE_UNSPECIFIED: _ClassVar[NodeState]
    NODE_STATE_NOT_STARTED: _ClassVar[NodeState]
    NODE_STATE_BOOTING: _ClassVar[NodeState]
    NODE_STATE_READY: _ClassVar[NodeState]
    NODE_STATE_DEGRADED: _ClassVar[NodeState]
    NODE_STATE_DRAINING: _ClassVar[NodeState]
    NODE_STATE_STOPPED: _ClassVar[NodeState]
    NODE_STATE_FAILED: _ClassVar[NodeState]
    NODE_STATE_ASLEEP: _ClassVar[NodeState]

class NodeReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NODE_REASON_UNSPECIFIED: _ClassVar[NodeReason]
    NODE_REASON_BOOTING: _ClassVar[NodeReason]
    NODE_REASON_BOOT_FAILED: _ClassVar[NodeReason]
    NODE_REASON_DRAINING: _ClassVar[NodeReason]
    NODE_REASON_ASLEEP: _ClassVar[NodeReason]
    NODE_REASON_RECONFIGURING: _ClassVar[NodeReason]
    NODE_REASON_LOOP_DEAD: _ClassVar[NodeReason]
    NODE_REASON_INFRA_FAILURE: _ClassVar[NodeReason]
    NODE_REASON_MEMORY_EXHAUSTED: _ClassVar[NodeReason]
    NODE_REASON_DEVICE_POISONED: _ClassVar[NodeReason]
    NODE_REASON_UPSTREAM_MISSING: _ClassVar[NodeReason]
NODE_STATE_UNSPECIFIED: NodeState
NODE_STATE_NOT_STARTED: NodeState
NODE_STATE_BOOTING: NodeState
NODE_STATE_READY: NodeState
NODE_STATE_DEGRADED: NodeState
NODE_STATE_DRAINING: NodeState
NODE_STATE_STOPPED: NodeState
NODE_STATE_FAILED: NodeState
NODE_STATE_ASLEEP: NodeState
NODE_REASON_UNSPECIFIED: NodeReason
NODE_REASON_BOOTING: NodeReason
NODE_REASON_BOOT_FAILED: NodeReason
NODE_REASON_DRAINING: NodeReason
NODE_REASON_ASLEEP: NodeReason
NODE_REASON_RECONFIGURING: NodeReason
NODE_REASON_LOOP_DEAD: NodeReason
NODE_REASON_INFRA_FAILURE: NodeReason
NODE_REASON_MEMORY_EXHAUSTED: NodeReason
NODE_REASON_DEVICE_POISONED: NodeReason
NODE_REASON_UPSTREAM_MISSING: NodeReason

class NodeStatus(_message.Message):
    __slots__ = ("service", "boot_id", "sequence", "state", "reason", "reason_text", "phase", "phase_fraction", "models", "slots_used", "slots_total", "waiting", "waiting_batch", "kv_entries_used", "kv_entries_cached", "kv_entries_total", "tick_age", "degraded", "running", "resident_bytes", "worker_restarts", "at")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REASON_TEXT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    PHASE_FRACTION_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_USED_FIELD_NUMBER: _ClassVar[int]
    SLOTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_BATCH_FIELD_NUMBER: _ClassVar[int]
    KV_ENTRIES_USED_FIELD_NUMBER: _ClassVar[int]
    KV_ENTRIES_CACHED_FIELD_NUMBER: _ClassVar[int]
    KV_ENTRIES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TICK_AGE_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKER_RESTARTS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    service: str
    boot_id: str
    sequence: int
    state: NodeState
    reason: NodeReason
    reason_text: str
    phase: str
    phase_fraction: float
    models: _containers.RepeatedScalarFieldContainer[str]
    slots_used: int
    slots_total: int
    waiting: int
    waiting_batch: int
    kv_entries_used: int
    kv_entries_cached: int
    kv_entries_total: int
    tick_age: _duration_pb2.Duration
    degraded: _containers.RepeatedCompositeFieldContainer[DegradedComponent]
    running: int
    resident_bytes: int
    worker_restarts: int
    at: _timestamp_pb2.Timestamp
    def __init__(self, service: _Optional[str] = ..., boot_id: _Optional[str] = ..., sequence: _Optional[int] = ..., state: _Optional[_Union[NodeState, str]] = ..., reason: _Optional[_Union[NodeReason, str]] = ..., reason_text: _Optional[str] = ..., phase: _Optional[str] = ..., phase_fraction: _Optional[float] = ..., models: _Optional[_Iterable[str]] = ..., slots_used: _Optional[int] = ..., slots_total: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_batch: _Optional[int] = ..., kv_entries_used: _Optional[int] = ..., kv_entries_cached: _Optional[int] = ..., kv_entries_total: _Optional[int] = ..., tick_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., degraded: _Optional[_Iterable[_Union[DegradedComponent, _Mapping]]] = ..., running: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., worker_restarts: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DegradedComponent(_message.Message):
    __slots__ = ("component", "reason")
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    component: str
    reason: str
    def __init__(self, component: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class WatchStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: NodeStatus
    def __init__(self, status: _Optional[_Union[NodeStatus, _Mapping]] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("service", "version", "commit", "boot_id", "started_at", "config_digest", "device", "limits", "libraries", "implementations")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LibrariesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ImplementationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LIBRARIES_FIELD_NUMBER: _ClassVar[int]
    IMPLEMENTATIONS_FIELD_NUMBER: _ClassVar[int]
    service: str
    version: str
    commit: str
    boot_id: str
    started_at: _timestamp_pb2.Timestamp
    config_digest: str
    device: str
    limits: _containers.ScalarMap[str, int]
    libraries: _containers.ScalarMap[str, str]
    implementations: _containers.ScalarMap[str, str]
    def __init__(self, service: _Optional[str] = ..., version: _Optional[str] = ..., commit: _Optional[str] = ..., boot_id: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., config_digest: _Optional[str] = ..., device: _Optional[str] = ..., limits: _Optional[_Mapping[str, int]] = ..., libraries: _Optional[_Mapping[str, str]] = ..., implementations: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GetSnapshotRequest(_message.Message):
    __slots__ = ("omit_requests",)
    OMIT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    omit_requests: bool
    def __init__(self, omit_requests: _Optional[bool] = ...) -> None: ...

class GetSnapshotResponse(_message.Message):
    __slots__ = ("status", "counters", "requests")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    status: NodeStatus
    counters: _containers.ScalarMap[str, float]
    requests: _containers.RepeatedCompositeFieldContainer[RequestRecord]
    def __init__(self, status: _Optional[_Union[NodeStatus, _Mapping]] = ..., counters: _Optional[_Mapping[str, float]] = ..., requests: _Optional[_Iterable[_Union[RequestRecord, _Mapping]]] = ...) -> None: ...

class RequestRecord(_message.Message):
    __slots__ = ("request_id", "operation", "model", "arrived_at", "phases", "finish_reason", "input_count", "output_count")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_AT_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    INPUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_COUNT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    operation: str
    model: str
    arrived_at: _timestamp_pb2.Timestamp
    phases: _containers.RepeatedCompositeFieldContainer[RequestPhase]
    finish_reason: str
    input_count: int
    output_count: int
    def __init__(self, request_id: _Optional[str] = ..., operation: _Optional[str] = ..., model: _Optional[str] = ..., arrived_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., phases: _Optional[_Iterable[_Union[RequestPhase, _Mapping]]] = ..., finish_reason: _Optional[str] = ..., input_count: _Optional[int] = ..., output_count: _Optional[int] = ...) -> None: ...

class RequestPhase(_message.Message):
    __slots__ = ("name", "start", "end")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: _duration_pb2.Duration
    end: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., start: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., end: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMetricsResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("key", "value_json", "origin")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_JSON_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    key: str
    value_json: str
    origin: str
    def __init__(self, key: _Optional[str] = ..., value_json: _Optional[str] = ..., origin: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("running",)
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    running: int
    def __init__(self, running: _Optional[int] = ...) -> None: ...

class UndrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UndrainResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShutdownRequest(_message.Message):
    __slots__ = ("reason", "grace")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    grace: _duration_pb2.Duration
    def __init__(self, reason: _Optional[str] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ShutdownResponse(_message.Message):
    __slots__ = ("restart_expected",)
    RESTART_EXPECTED_FIELD_NUMBER: _ClassVar[int]
    restart_expected: bool
    def __init__(self, restart_expected: _Optional[bool] = ...) -> None: ...

class StopRequestRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class StopRequestResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AnswerNowRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AnswerNowResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushPrefixCacheRequest(_message.Message):
    __slots__ = ("tenant", "all")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    all: bool
    def __init__(self, tenant: _Optional[str] = ..., all: _Optional[bool] = ...) -> None: ...

class FlushPrefixCacheResponse(_message.Message):
    __slots__ = ("entries", "bytes")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    entries: int
    bytes: int
    def __init__(self, entries: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ("timeout",)
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    timeout: _duration_pb2.Duration
    def __init__(self, timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SleepResponse(_message.Message):
    __slots__ = ("released_bytes",)
    RELEASED_BYTES_FIELD_NUMBER: _ClassVar[int]
    released_bytes: int
    def __init__(self, released_bytes: _Optional[int] = ...) -> None: ...

class WakeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
