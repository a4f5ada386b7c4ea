import datetime

from antiphon.admin.v1 import node_pb2 as _node_pb2
from google.api import annotations_pb2 as _annotations_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicaSelector(_message.Message):
    __slots__ = ("replica_ids", "services")
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    replica_ids: _containers.RepeatedScalarFieldContainer[str]
    services: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, replica_ids: _Optional[_Iterable[str]] = ..., services: _Optional[_Iterable[str]] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("id", "status", "fresh", "ready", "age", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    status: _node_pb2.NodeStatus
    fresh: bool
    ready: bool
    age: _duration_pb2.Duration
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., status: _Optional[_Union[_node_pb2.NodeStatus, _Mapping]] = ..., fresh: _Optional[bool] = ..., ready: _Optional[bool] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GetFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFleetResponse(_message.Message):
    __slots__ = ("replicas", "ready", "at")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    ready: bool
    at: _timestamp_pb2.Timestamp
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., ready: _Optional[bool] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class WatchFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchFleetResponse(_message.Message):
    __slots__ = ("replicas", "ready")
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    ready: bool
    def __init__(self, replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., ready: _Optional[bool] = ...) -> None: ...

class GetFleetSnapshotRequest(_message.Message):
    __slots__ = ("selector",)
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    selector: ReplicaSelector
    def __init__(self, selector: _Optional[_Union[ReplicaSelector, _Mapping]] = ...) -> None: ...

class GetFleetSnapshotResponse(_message.Message):
    __slots__ = ("snapshots",)
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    snapshots: _containers.RepeatedCompositeFieldContainer[ReplicaSnapshot]
    def __init__(self, snapshots: _Optional[_Iterable[_Union[ReplicaSnapshot, _Mapping]]] = ...) -> None: ...

class ReplicaSnapshot(_message.Message):
    __slots__ = ("replica_id", "snapshot", "error")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    snapshot: _node_pb2.GetSnapshotResponse
    error: _status_pb2.Status
    def __init__(self, replica_id: _Optional[str] = ..., snapshot: _Optional[_Union[_node_pb2.GetSnapshotResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GetFleetInfoRequest(_message.Message):
    __slots__ = ("selector",)
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    selector: ReplicaSelector
    def __init__(self, selector: _Optional[_Union[ReplicaSelector, _Mapping]] = ...) -> None: ...

class GetFleetInfoResponse(_message.Message):
    __slots__ = ("infos",)
    INFOS_FIELD_NUMBER: _ClassVar[int]
    infos: _containers.RepeatedCompositeFieldContainer[ReplicaInfo]
    def __init__(self, infos: _Optional[_Iterable[_Union[ReplicaInfo, _Mapping]]] = ...) -> None: ...

class ReplicaInfo(_message.Message):
    __slots__ = ("replica_id", "info", "error")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    info: _node_pb2.GetServerInfoResponse
    error: _status_pb2.Status
    def __init__(self, replica_id: _Optional[str] = ..., info: _Optional[_Union[_node_pb2.GetServerInfoResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GetFleetMetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFleetMetricsResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: bytes
    def __init__(self, text: _Optional[bytes] = ...) -> None: ...

class DrainReplicasRequest(_message.Message):
    __slots__ = ("selector", "reason")
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    selector: ReplicaSelector
    reason: str
    def __init__(self, selector: _Optional[_Union[ReplicaSelector, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class DrainReplicasResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ReplicaResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ReplicaResult, _Mapping]]] = ...) -> None: ...

class UndrainReplicasRequest(_message.Message):
    __slots__ = ("selector",)
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    selector: ReplicaSelector
    def __init__(self, selector: _Optional[_Union[ReplicaSelector, _Mapping]] = ...) -> None: ...

class UndrainReplicasResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ReplicaResult]
    def __init__(self, results: _Optional[_Iterable[_Union[ReplicaResult, _Mapping]]] = ...) -> None: ...

class ReplicaResult(_message.Message):
    __slots__ = ("replica_id", "error")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    error: _status_pb2.Status
    def __init__(self, replica_id: _Optional[str] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...
