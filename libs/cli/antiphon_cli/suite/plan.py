"""Which processes the suite consists of: ports, command lines, readiness targets."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from antiphon_core.config import process_environment
from antiphon_core.errors import FailedPrecondition
from antiphon_core.settings_sources import Sources, read_file

from antiphon_cli.edge.render import ProxyPlan, Target, Tls
from antiphon_cli.suite.settings import EdgeSettings

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Ports:
    """The suite's ports: consecutive, from the edge listener's."""

    edge: int

    @property
    def gateway(self) -> int:
        """REST and WebSocket of the gateway, behind Envoy."""
        return self.edge + 1

    @property
    def llm(self) -> int:
        """gRPC of the language-model service."""
        return self.edge + 2

    @property
    def vocoder(self) -> int:
        """gRPC of the speech service."""
        return self.edge + 3

    @property
    def admin(self) -> int:
        """gRPC of the admin service."""
        return self.edge + 4

    @property
    def admin_http(self) -> int:
        """HTTP of the admin service: /metrics, /health, /snapshot."""
        return self.edge + 5

    @property
    def gateway_node(self) -> int:
        """gRPC NodeAdminService of the gateway."""
        return self.edge + 6

    @property
    def envoy_admin(self) -> int:
        """Envoy's own admin interface."""
        return self.edge + 7

    @property
    def egress(self) -> int:
        """Envoy's egress listener."""
        return self.edge + 8

    def named(self) -> dict[str, int]:
        """Every port by what listens on it."""
        names = ("edge", "gateway", "llm", "vocoder", "admin", "admin_http", "gateway_node")
        return {name: getattr(self, name) for name in (*names, "envoy_admin", "egress")}


@dataclass(frozen=True)
class ServicePlan:
    """One service process."""

    name: str
    command: tuple[str, ...]
    node_target: str
    """host:port of its NodeAdminService; empty for Envoy."""


def check_ports(host: str, ports: Ports) -> None:
    """Refuses a start that would fail later.

    Raises:
        FailedPrecondition: naming each port that is taken and how to choose others.
    """
    taken = []
    for name, port in ports.named().items():
        address = host if name == "edge" else LOOPBACK
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                taken.append(f"{port} ({name})")
    if taken:
        raise FailedPrecondition(
            f"port in use: {', '.join(taken)}; stop what listens there, or choose another block "
            "of nine ports with --port N (or port under [edge] in the configuration file)",
            field="edge.port",
        )


def service_plans(
    ports: Ports, settings: EdgeSettings, config_file: Path | None, overrides: dict[str, list[str]]
) -> list[ServicePlan]:
    """The Python services, in the order in which they start.

    Args:
        overrides: further flags by service name, such as ``{"llm": ["--model", "..."]}``.
    """
    llm = f"{LOOPBACK}:{ports.llm}"
    vocoder = f"{LOOPBACK}:{ports.vocoder}"
    egress = f"{LOOPBACK}:{ports.egress}"
    gateway_node = f"{LOOPBACK}:{ports.gateway_node}"
    admin = f"{LOOPBACK}:{ports.admin}"
    grace = str(settings.drain_grace_s)
    flags = {
        "llm": ["--bind", llm, "--supervised", "--drain-grace-s", grace],
        "vocoder": ["--bind", vocoder, "--drain-grace-s", grace],
        "gateway": [
            *("--host", LOOPBACK, "--port", str(ports.gateway), "--node-bind", gateway_node),
            *("--llm-targets", llm, "--vocoder-targets", vocoder),
            *(("--egress-target", egress) if settings.egress else ()),
            *("--drain-notice-seconds", "0", "--drain-grace-seconds", grace),
            *_store_flags(settings, config_file),
        ],
        "admin": [
            *("--bind", admin, "--http-bind", f"{LOOPBACK}:{ports.admin_http}"),
            *("--replicas", f"llm={llm},vocoder={vocoder},gateway={gateway_node}"),
            *("--drain-grace-s", grace),
        ],
    }
    nodes = {"llm": llm, "vocoder": vocoder, "gateway": gateway_node, "admin": admin}
    plans = []
    for name, arguments in flags.items():
        command = [sys.executable, "-m", f"antiphon_{name}"]
        if config_file is not None:
            command += ["--config", str(config_file)]
        command += [*arguments, *overrides.get(name, [])]
        plans.append(ServicePlan(name, tuple(command), node_target=nodes[name]))
    return plans


def _store_flags(settings: EdgeSettings, config_file: Path | None) -> tuple[str, ...]:
    """The suite's own store, unless file or environment name one: a flag would outdo them."""
    sources = Sources()
    if config_file is not None:
        read_file(sources, config_file, "gateway")
    is_named = any(name.startswith("ANTIPHON_GATEWAY_STORE") for name in process_environment())
    if is_named or "store" in sources.values:
        return ()
    return ("--store.directory", str(settings.store_directory))


def proxy_plan(ports: Ports, settings: EdgeSettings) -> ProxyPlan:
    """The Envoy of the suite: the edge listener, and the egress listener."""
    tls = Tls(str(tls_secret_path(settings))) if settings.tls_certificate else None
    return ProxyPlan(
        admin=Target(LOOPBACK, ports.envoy_admin),
        llm=(Target(LOOPBACK, ports.llm),),
        vocoder=(Target(LOOPBACK, ports.vocoder),),
        gateway=(Target(LOOPBACK, ports.gateway),),
        edge=Target(settings.host, settings.port),
        egress=Target(LOOPBACK, ports.egress),
        tls=tls,
        admin_service=(Target(LOOPBACK, ports.admin),),
    )


def tls_secret_path(settings: EdgeSettings) -> Path:
    """The file that names the edge's certificate and key to Envoy."""
    return settings.run_dir.resolve() / "envoy-tls.yaml"
