"""What the service reports of itself to operators."""

from __future__ import annotations

from antiphon_core.node_types import NodeMeasures, ServerInfo

from antiphon_llm.config import LlmSettings
from antiphon_llm.front.engine_client import EngineClient
from antiphon_llm.front.model import ModelCard


def node_measures(engine: EngineClient | None, card: ModelCard | None) -> NodeMeasures:
    """Gauges for the node's status; what is unknown is None."""
    if engine is None:
        return NodeMeasures()
    gauges = engine.gauges
    return NodeMeasures(
        models=[card.name] if card else [],
        slots_used=engine.running,
        slots_total=engine.hello.max_rows if engine.hello else None,
        running=engine.running,
        waiting=engine.waiting,
        waiting_batch=engine.waiting_batch,
        kv_entries_used=gauges.kv_used if gauges else None,
        kv_entries_cached=gauges.kv_cached if gauges else None,
        kv_entries_total=gauges.kv_total if gauges else None,
        tick_age=engine.silence,
        resident_bytes=gauges.rss_bytes or None if gauges else None,
        worker_restarts=engine.restarts,
    )


def server_info(settings: LlmSettings, engine: EngineClient | None, version: str) -> ServerInfo:
    """Versions, limits and implementations."""
    hello = engine.hello if engine is not None else None
    limits = {name: settings.resolved(name) for name in ("queue_limit", "max_rows")}
    if hello is not None:
        limits |= {"context_limit": hello.context_limit, "kv_entries": hello.kv_entries}
    return ServerInfo(
        service="llm",
        version=version,
        config_digest=settings.digest(),
        device=hello.device if hello else settings.device,
        limits=limits,
        implementations={
            **(hello.kernels if hello else {}),
            "graphs": "eager by declaration",
        },
    )
