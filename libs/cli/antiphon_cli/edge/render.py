"""Renders the Envoy configuration from the template beside this module."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources

from jinja2 import Environment, StrictUndefined

GRPC_SERVICES = (
    ("antiphon.llm.v1.LlmService", "llm"),
    ("antiphon.vocoder.v1.VocoderService", "vocoder"),
    ("antiphon.vocoder.v1.RecognitionService", "vocoder"),
)
"""Services that callers reach through the proxy, with their cluster. Administration is not one."""


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
    """Certificate chain and key of the edge listener, as file paths."""

    certificate: str
    key: str


@dataclass(frozen=True)
class ProxyPlan:
    """What one Envoy process does: an edge listener, an egress listener, or both."""

    admin: Target
    llm: tuple[Target, ...]
    vocoder: tuple[Target, ...]
    gateway: tuple[Target, ...] = ()
    edge: Target | None = None
    egress: Target | None = None
    tls: Tls | None = None
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
    return environment.from_string(template).render(vars(plan))
