"""Replicas to wire messages, and to JSON for the HTTP side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from antiphon.admin.v1 import admin_service_pb2, node_pb2
from antiphon_core.rpc.errors import to_status
from google.protobuf import json_format

from antiphon_admin.fleet import Replica


def replica_message(replica: Replica) -> admin_service_pb2.Replica:
    """A replica with its last status and the error of its stream."""
    message = admin_service_pb2.Replica(id=replica.id, fresh=replica.fresh, ready=replica.ready)
    if replica.status is not None:
        assert isinstance(replica.status.message, node_pb2.NodeStatus)
        message.status.CopyFrom(replica.status.message)
    if math.isfinite(replica.age):
        message.age.FromNanoseconds(int(replica.age * 1e9))
    if replica.error is not None:
        message.error.CopyFrom(to_status(replica.error))
    return message


def replicas_json(replicas: Sequence[Replica]) -> list[dict[str, Any]]:
    """The same as JSON objects, field names as in the protos; error details are left out."""
    rows = []
    for replica in replicas:
        message = replica_message(replica)
        message.error.ClearField("details")
        rows.append(
            json_format.MessageToDict(
                message,
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
        )
    return rows
