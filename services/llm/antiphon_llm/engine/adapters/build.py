"""Opening the adapters of an engine that is being built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon_llm.messages import EngineConfig
from antiphon_llm.models.adapters import module_shapes

from .desk import AdapterDesk
from .paths import AdapterRoot

if TYPE_CHECKING:
    from antiphon_llm.engine.loop import EngineLoop
    from antiphon_llm.models.decoder import Decoder

SLOTS_MAX = 64
RANK_MAX = 512


def check_adapter_config(config: EngineConfig) -> None:
    """What configuration and the file system alone can refute; ValueError names the field."""
    for name, highest in (("adapter_slots", SLOTS_MAX), ("adapter_rank_max", RANK_MAX)):
        if not 1 <= getattr(config, name) <= highest:
            raise ValueError(f"{name} must be 1 to {highest}, got {getattr(config, name)}")
    if config.adapter_bytes < 1:
        raise ValueError(f"adapter_bytes must be 1 or more, got {config.adapter_bytes}")
    if config.adapters_dir:
        AdapterRoot(config.adapters_dir)


def serve_adapters(config: EngineConfig, model: Decoder) -> None:
    """Makes room for adapters in a model, where they are served."""
    if config.adapters_dir:
        model.serve_adapters(config.adapter_slots, config.adapter_rank_max)


def open_adapters(loop: EngineLoop, config: EngineConfig, model: Decoder) -> None:
    """Lets requests and messages of a loop reach the model's adapters."""
    if model.adapters is None:
        return
    desk = AdapterDesk(
        model.adapters,
        AdapterRoot(config.adapters_dir),
        [module_shapes(model.spec, layer) for layer in model.spec.layers],
        byte_limit=config.adapter_bytes,
        users=loop.intake.adapter_users,
        answer=loop.answer,
    )
    loop.intake.adapters = desk
    loop.owners.register(
        "adapters", model.adapters, nbytes=model.adapters.nbytes, release=desk.close
    )
