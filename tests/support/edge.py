"""Envoy from the product's template, replicas and gateways, each a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import httpx
from antiphon_cli.edge.render import ProxyPlan, Target, Timings, render

from support.waiting import until

ENVOY = Path(sys.executable).with_name("envoy")
TESTS = Path(__file__).resolve().parents[1]
FAST = replace(Timings().scaled(0.1), ejection_s=3.0, health_timeout_s=3.0)
"""The product's times on a clock ten times as fast; a busy machine answers no faster for it."""
START_S = 30.0

_numbers = itertools.count()
_ports = itertools.cycle(range(12000 + os.getpid() % 80 * 100, 20900))


def ports(count: int) -> list[int]:
    """Free ports that this process has not given away, below those that the kernel gives to
    clients: nobody takes one between its death and its return."""
    found: list[int] = []
    while len(found) < count:
        port = next(_ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


@dataclass
class Child:
    """A process with its log."""

    process: asyncio.subprocess.Process
    log: Path

    async def stop(self, number: int = signal.SIGTERM, seconds: float = 20.0) -> None:
        """Sends a signal and waits for the end; harmless when it is over."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        try:
            await asyncio.wait_for(self.process.wait(), seconds)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise


async def start(log: Path, *command: str) -> Child:
    """Starts a process whose output goes to a log; ``support`` can be imported there."""
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, env=os.environ | {"PYTHONPATH": path}
        )
    return Child(process, log)


@dataclass
class Envoy:
    """A running proxy."""

    child: Child
    plan: ProxyPlan

    @property
    def url(self) -> str:
        """Of the edge listener."""
        return f"http://{self.plan.edge}"

    async def hosts(self, cluster: str) -> dict[int, dict[str, Any]]:
        """What Envoy knows of a cluster's hosts, by port."""
        async with httpx.AsyncClient(verify=False) as http:  # Certificates take long to load
            answer = await http.get(f"http://{self.plan.admin}/clusters?format=json")
        for status in answer.json()["cluster_statuses"]:
            if status["name"] == cluster:
                return {
                    host["address"]["socket_address"]["port_value"]: host
                    for host in status.get("host_statuses", ())
                }
        return {}

    async def healthy(self, cluster: str) -> set[int]:
        """Ports of the hosts that take work."""
        return {
            port
            for port, host in (await self.hosts(cluster)).items()
            if host["health_status"].get("eds_health_status") == "HEALTHY"
            and not any(value is True for value in host["health_status"].values())
        }

    async def wait_healthy(self, cluster: str, expected: set[int], seconds: float = 15.0) -> None:
        """Until exactly these ports take work.

        Raises:
            AssertionError: they do not in time.
        """
        deadline = time.monotonic() + seconds
        while (found := await self.healthy(cluster)) != expected:
            assert time.monotonic() < deadline, (cluster, found, expected)
            await asyncio.sleep(0.05)

    def access_log(self) -> list[dict[str, Any]]:
        """Every access so far."""
        lines = self.child.log.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line.get("event") == "access"]


@asynccontextmanager
async def envoy(folder: Path, plan: ProxyPlan) -> AsyncIterator[Envoy]:
    """The pinned binary on the rendered plan, for the block."""
    number = next(_numbers)
    file = folder / f"envoy-{number}.yaml"
    file.write_text(render(plan), encoding="utf-8")
    child = await start(
        folder / f"envoy-{number}.log",
        *(str(ENVOY), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1"),
        *("--log-level", "error", "--file-flush-interval-msec", "100"),
    )
    try:
        async with httpx.AsyncClient() as http:
            deadline = time.monotonic() + START_S
            while True:
                assert child.process.returncode is None, child.log.read_text()[-2000:]
                assert time.monotonic() < deadline
                try:
                    if (await http.get(f"http://{plan.admin}/ready")).status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)
        yield Envoy(child, plan)
    finally:
        await child.stop(signal.SIGKILL)


@dataclass
class Stack:
    """Clients -> edge -> gateways -> egress -> replicas."""

    folder: Path
    proxy: Envoy
    replica_ports: dict[str, int]
    gateway_ports: dict[str, int]
    ops_ports: dict[str, int]
    """Of the gateways' metrics."""
    children: dict[str, Child] = field(default_factory=dict)

    @property
    def executions_file(self) -> Path:
        return self.folder / "executions"

    def executions(self, prompt: str = "") -> Counter[str]:
        """How often each replica began to work on a prompt; on all of them without one."""
        if not self.executions_file.exists():
            return Counter()
        lines = self.executions_file.read_text().splitlines()
        rows = [line.split(" ", 1) for line in lines]
        return Counter(name for name, text in rows if not prompt or text == prompt[:40])

    async def start_replica(self, name: str, **flags: object) -> None:
        """Starts a replica on its port; Envoy and the gateways find it in their time."""
        extra = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
        port = str(self.replica_ports[name])
        self.children[name] = await start(
            self.folder / f"{name}.log",
            *(sys.executable, "-m", "support.replica", port, name, str(self.executions_file)),
            *extra,
        )

    async def start_gateway(self, name: str, *flags: str) -> None:
        """Starts a gateway that dials the replicas through the egress listener."""
        targets = json.dumps([f"127.0.0.1:{port}" for port in self.replica_ports.values()])
        self.children[name] = await start(
            self.folder / f"{name}.log",
            *(sys.executable, "-m", "antiphon_gateway", "--port", str(self.gateway_ports[name])),
            *("--ops-port", str(self.ops_ports[name])),
            *("--llm-targets", targets, "--vocoder-targets", targets),
            *("--egress-target", str(self.proxy.plan.egress), *flags),
        )

    async def ready(self) -> None:
        """Until every replica and gateway takes work, and each gateway has found each replica."""
        replicas = set(self.replica_ports.values())
        for cluster in ("llm", "llm_affine", "vocoder"):
            await self.proxy.wait_healthy(cluster, replicas, START_S)
        await self.proxy.wait_healthy("gateway", set(self.gateway_ports.values()), START_S)
        found = f'{{service="llm",state="ready"}} {len(replicas)}.0'
        async with asyncio.timeout(START_S), httpx.AsyncClient() as http:
            for port in self.ops_ports.values():
                while found not in (await http.get(f"http://127.0.0.1:{port}/metrics")).text:
                    await asyncio.sleep(0.05)

    def chat(self, http: httpx.AsyncClient, prompt: str, **fields: object):
        """One request through the edge."""
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}
        return http.post(f"{self.proxy.url}/v1/chat/completions", json=body)


@asynccontextmanager
async def stack(
    folder: Path,
    *,
    replicas: dict[str, dict[str, object]],
    gateways: dict[str, tuple[str, ...]],
    timings: Timings = FAST,
    **plan: Any,
) -> AsyncIterator[Stack]:
    """Everything running and ready, for the block.

    Args:
        folder: for logs.
        replicas: names, with flags of support.replica.
        gateways: names, with flags of antiphon_gateway.
        timings: of the proxy.
        plan: further fields of the ProxyPlan.
    """
    numbers = ports(3 + len(replicas) + 2 * len(gateways))
    targets = [Target("127.0.0.1", number) for number in numbers]
    backends = targets[3 : 3 + len(replicas)]
    fronts = targets[3 + len(replicas) :][: len(gateways)]
    rendered = ProxyPlan(
        admin=targets[0],
        edge=targets[1],
        egress=targets[2],
        llm=tuple(backends),
        vocoder=tuple(backends),
        gateway=tuple(fronts),
        timings=timings,
        **plan,
    )
    async with envoy(folder, rendered) as proxy:
        made = Stack(
            folder,
            proxy,
            dict(zip(replicas, (target.port for target in backends), strict=True)),
            dict(zip(gateways, (target.port for target in fronts), strict=True)),
            dict(zip(gateways, numbers[-len(gateways) :], strict=True)),
        )
        try:
            for name, flags in replicas.items():
                await made.start_replica(name, **flags)
            for name, arguments in gateways.items():
                await made.start_gateway(name, *arguments)
            await made.ready()
            yield made
        finally:
            for child in made.children.values():
                await child.stop(signal.SIGKILL)


async def eventually(check: Callable[[], object], seconds: float = 15.0) -> None:
    """``until`` for conditions that a proxy reaches in its own time."""
    await until(check, seconds)


def channel(target: Target | None) -> grpc.aio.Channel:
    """A plain channel, as another team's stub would open it."""
    return grpc.aio.insecure_channel(str(target))
