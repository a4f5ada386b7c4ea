"""Renders the Envoy configuration from the template beside this module."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, replace
from importlib import resources

import yaml
from antiphon.admin.v1 import admin_service_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.rpc import error_details_pb2
from jinja2 import Environment, StrictUndefined

GRPC_SERVICES = (
    ("antiphon.llm.v1.LlmService", "llm"),
    ("antiphon.vocoder.v1.VocoderService", "vocoder"),
    ("antiphon.vocoder.v1.RecognitionService", "vocoder"),
)
"""Services that callers reach through the proxy, with their cluster. Administration is not one."""

INNER_HEADERS = (
    "x-antiphon-affinity",
    "x-antiphon-all-tenants",
    "x-antiphon-endpoint",
    "x-antiphon-not-started",
)
"""What only the inside may say; the edge takes it off what clients send."""

AUTHORIZE_PATH = "/internal/authorize"
"""Prefix under which the gateway judges the head of a request that does not pass through it."""

TLS_SECRET_NAME = "edge"


@dataclass(frozen=True)
class Target:
    """A host and port that Envoy listens on or dials."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Target:
        """Reads ``host:port``.

        Raises:
            ValueError: naming the text, when it has another form.
        """
        host, separator, port = text.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} is not host:port with a port of 1 to 65535")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Tls:
    """Encryption of the edge listener."""

    secret: str
    """Path of the file that names certificate and key: what ``render_tls_secret`` returns."""


@dataclass(frozen=True)
class Timings:
    """Every time of the proxy, in seconds; 0 is none."""

    connect_s: float = 1.0
    api_idle_s: float = 630.0
    """Silence on a REST response. The gateway fills that of a stream every 15 s, but an answer in
    one piece is silent until it is done: beyond the gateway's request_seconds, whose error is
    better."""
    grpc_idle_s: float = 0.0
    """Silence on a gRPC call, which may be long in one direction."""
    pages_s: float = 60.0
    admin_s: float = 60.0
    health_s: float = 2.0
    health_timeout_s: float = 1.0
    ping_s: float = 30.0
    ping_timeout_s: float = 10.0
    outlier_s: float = 5.0
    ejection_s: float = 10.0
    load_report_s: float = 1.0

    def scaled(self, factor: float) -> Timings:
        """All times but connection limits, multiplied: the same proxy on a faster clock.

        Pings keep their pace too: servers end a connection that brings them too often.
        """
        fields = {name: value * factor for name, value in vars(self).items() if value}
        kept = ("connect_s", "health_timeout_s", "ping_s", "ping_timeout_s")
        return replace(self, **fields | {name: getattr(self, name) for name in kept})


@dataclass(frozen=True)
class ProxyPlan:
    """What one Envoy process does: an edge listener, an egress listener, or both."""

    admin: Target
    """Of Envoy's own administration."""
    llm: tuple[Target, ...]
    vocoder: tuple[Target, ...]
    gateway: tuple[Target, ...] = ()
    edge: Target | None = None
    egress: Target | None = None
    tls: Tls | None = None
    admin_service: tuple[Target, ...] = ()
    """Served as JSON under /v1/admin/ of the edge; none without targets."""
    max_connections: int = 20_000
    """Of all clients of the edge together."""
    timings: Timings = Timings()
    grpc_services: tuple[tuple[str, str], ...] = field(default=GRPC_SERVICES)

    def __post_init__(self) -> None:
        if self.edge is None and self.egress is None:
            raise ValueError("a proxy needs an edge or an egress listener")
        if self.edge is not None and not self.gateway:
            raise ValueError("an edge listener needs at least one gateway")


def render(plan: ProxyPlan) -> str:
    """The Envoy configuration of a plan, as YAML text."""
    template = (
        resources.files("antiphon_cli.edge").joinpath("envoy.yaml.j2").read_text(encoding="utf-8")
    )
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["seconds"] = lambda value: f"{value:g}s"
    # The admin cluster belongs to the edge's route.
    served = replace(plan, admin_service=plan.admin_service if plan.edge else ())
    return environment.from_string(template).render(
        vars(served)
        | {
            "inner_headers": INNER_HEADERS,
            "authorize_path": AUTHORIZE_PATH,
            "tls_secret_name": TLS_SECRET_NAME,
            "admin_descriptor": _admin_descriptor() if served.admin_service else "",
        }
    )


def render_tls_secret(certificate: str, key: str) -> str:
    """The file that Envoy reads the edge's certificate from, and reads again when it changes.

    Replace it by renaming a new one over it: Envoy watches for that.

    Args:
        certificate: path of the PEM chain.
        key: path of the PEM private key.
    """
    secret = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        "name": TLS_SECRET_NAME,
        "tls_certificate": {
            "certificate_chain": {"filename": certificate},
            "private_key": {"filename": key},
        },
    }
    return yaml.safe_dump({"resources": [secret]}, sort_keys=False)


def _admin_descriptor() -> str:
    """AdminService with all that its messages hold, for the JSON transcoder; base64."""
    files: dict[str, FileDescriptorProto] = {}

    def add(descriptor: FileDescriptor) -> None:
        if descriptor.name in files:
            return
        for dependency in descriptor.dependencies:
            add(dependency)
        proto = FileDescriptorProto()
        descriptor.CopyToProto(proto)
        files[descriptor.name] = proto

    add(admin_service_pb2.DESCRIPTOR)
    add(error_details_pb2.DESCRIPTOR)
    content = FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True)
    return base64.b64encode(content).decode()
