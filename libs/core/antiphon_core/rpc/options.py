"""Channel arguments of servers and clients; the two sides have to agree on pings and sizes."""

from __future__ import annotations

MESSAGE_LIMIT = 64 * 1024 * 1024
"""Bytes of one message, both ways."""

_PING_INTERVAL_MS = 30_000
_PING_TIMEOUT_MS = 10_000
_MINIMUM_PING_INTERVAL_MS = 5_000
"""Peers such as Envoy may ping every 10 s; half of it leaves room for jitter."""

_STREAM_WINDOW = 1024 * 1024
"""Bytes that one stream may have under way: 80 MB/s at 12 ms round trip."""

_COMMON = (
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.keepalive_time_ms", _PING_INTERVAL_MS),
    ("grpc.keepalive_timeout_ms", _PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    # The estimator of the link's bandwidth answers traffic with pings of its own, also between
    # small messages such as tokens; a fixed window serves our links.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _STREAM_WINDOW),
)

SERVER_OPTIONS = (
    *_COMMON,
    # With port sharing on, a second server would bind the same port and take half the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", _MINIMUM_PING_INTERVAL_MS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _MINIMUM_PING_INTERVAL_MS),
)

CHANNEL_OPTIONS = (
    *_COMMON,
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Channels of one process to one target must not share a broken connection.
    ("grpc.use_local_subchannel_pool", 1),
)
