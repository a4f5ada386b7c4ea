"""`antiphon edge`: the proxy's configuration on its own."""

from __future__ import annotations

from typing import Annotated

import typer
from antiphon_core.errors import InvalidArgument

from antiphon_cli.edge.render import ProxyPlan, Target, Tls, render, render_tls_secret

app = typer.Typer(no_args_is_help=True, help="Envoy configuration for other deployments.")

Targets = Annotated[list[str], typer.Option(help="host:port; repeat for replicas.")]


@app.callback()
def group() -> None:
    """Envoy configuration for other deployments."""


@app.command("render")
def render_command(
    llm: Targets,
    vocoder: Targets,
    gateway: Annotated[list[str] | None, typer.Option(help="host:port; for an edge.")] = None,
    edge: Annotated[str, typer.Option(help="host:port of the edge listener.")] = "",
    egress: Annotated[str, typer.Option(help="host:port of the egress listener.")] = "",
    admin: Annotated[str, typer.Option(help="host:port of Envoy's admin.")] = "127.0.0.1:9901",
    admin_service: Annotated[
        list[str] | None, typer.Option(help="host:port of the admin service, for /v1/admin/.")
    ] = None,
    tls_secret: Annotated[
        str, typer.Option(help="Path of the file that `antiphon edge tls-secret` prints.")
    ] = "",
) -> None:
    """Print the Envoy configuration of a deployment."""
    try:
        plan = ProxyPlan(
            admin=Target.parse(admin),
            llm=tuple(map(Target.parse, llm)),
            vocoder=tuple(map(Target.parse, vocoder)),
            gateway=tuple(map(Target.parse, gateway or [])),
            edge=Target.parse(edge) if edge else None,
            egress=Target.parse(egress) if egress else None,
            admin_service=tuple(map(Target.parse, admin_service or [])),
            tls=Tls(tls_secret) if tls_secret else None,
        )
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    typer.echo(render(plan), nl=False)


@app.command("tls-secret")
def tls_secret_command(
    certificate: Annotated[str, typer.Option(help="Path of the PEM certificate chain.")],
    key: Annotated[str, typer.Option(help="Path of the PEM private key.")],
) -> None:
    """Print the file from which Envoy reads the edge's certificate, again when it is replaced."""
    typer.echo(render_tls_secret(certificate, key), nl=False)
