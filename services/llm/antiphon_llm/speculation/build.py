"""Which drafter a configuration asks for: its weights and memory, and what runs over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from antiphon_nn.checkpoint import Checkpoint, open_checkpoint

from antiphon_llm.kvcache.block_table import BlockTables
from antiphon_llm.kvcache.fields import FieldSpec
from antiphon_llm.kvcache.pool import KvPool
from antiphon_llm.messages import EngineConfig

from .drafter import Drafter
from .limits import DraftLimits
from .ngram import NgramDrafter

if TYPE_CHECKING:
    import torch

    from antiphon_llm.models.decoder import Decoder

    from .head import HiddenHead


class DrafterMismatch(ValueError):
    """The drafter's checkpoint does not fit the model that it is to draft for."""


@dataclass(slots=True)
class Drafting:
    """What a configuration's drafter takes, known before the KV pool is made."""

    _open: Callable[[BlockTables, KvPool], Any]
    fields: list[FieldSpec] = field(default_factory=list)
    """What it adds to an entry of the KV pool."""
    weight_bytes: int = 0
    work_bytes: int = 0
    """Everything else, at the largest context."""
    matrices: list[torch.Tensor] = field(default_factory=list)
    """Dense weights, for a device that sleeps."""
    _drafter: Any = None

    def open(self, tables: BlockTables, pool: KvPool) -> Drafter | None:
        """The drafter over a pool with its fields; None where none is configured. With it, the
        model may run."""
        self._drafter = self._open(tables, pool)
        return self._drafter

    def fallbacks(self) -> dict[str, int]:
        """Ways that the drafter took because a better one was not there, by name."""
        return getattr(self._drafter, "fallbacks", {})

    def counters(self) -> dict[str, int]:
        """What the drafter did, by outcome."""
        return getattr(self._drafter, "counters", {})


def load_drafting(config: EngineConfig, checkpoint: Checkpoint, model: Decoder) -> Drafting:
    """Loads the weights of the configured drafter onto the model's device.

    Raises ValueError (DrafterMismatch, UnsupportedConfig, CheckpointError) for a checkpoint that
    has no such drafter, or one of another model.
    """
    limits = DraftLimits(
        max_rows=config.max_rows,
        depth=config.draft_depth,
        chunk_tokens=config.prefill_chunk,
        entry_tokens=config.entry_tokens,
        residual=config.draft_accept == "residual",
    )
    context = config.context_limit or model.spec.context_limit
    if config.drafter == "model":
        return _load_model(config.draft_model_path, checkpoint, model, limits, context)
    if config.drafter in ("mtp", "eagle3"):
        head = _load_head(config, checkpoint, model)
        return _load_hidden(head, model, limits, context, config.step_tokens)
    if config.drafter == "ngram":
        return Drafting(lambda tables, pool: NgramDrafter())
    if not config.drafter:
        return Drafting(lambda tables, pool: None)
    raise ValueError(
        f"drafter is {config.drafter!r}; supported: ngram, model, mtp, eagle3, or empty for none"
    )


def _load_model(
    path: str, checkpoint: Checkpoint, target: Decoder, limits: DraftLimits, context: int
) -> Drafting:
    from antiphon_llm.models.registry import build_model, tokenizer_fingerprint

    from .model_drafter import ModelDrafter, draft_fields, predict_bytes

    source = open_checkpoint(path)
    wanted, found = tokenizer_fingerprint(checkpoint), tokenizer_fingerprint(source)
    if wanted != found:
        raise DrafterMismatch(
            f"draft_model_path {path!r} has the tokenizer {found or '(none)'}, the model has "
            f"{wanted or '(none)'}: a draft model must have the same tokenizer files"
        )
    model = build_model(
        source, device=target.device, dtype=target.dtype, fixed_tokens=limits.max_rows
    )
    if not wanted and model.vocab_size != target.vocab_size:
        raise DrafterMismatch(
            f"draft_model_path {path!r} has {model.vocab_size} token ids, the model "
            f"{target.vocab_size}, and neither has tokenizer files that could be compared"
        )
    return Drafting(
        lambda tables, pool: ModelDrafter(
            model, tables, pool, limits, vocabulary=target.vocab_size
        ),
        draft_fields(model, limits),
        model.weight_bytes,
        predict_bytes(model, limits, context, target.vocab_size),
        model.matrices,
    )


def _load_head(config: EngineConfig, checkpoint: Checkpoint, target: Decoder) -> HiddenHead:
    tokens = max(config.max_rows, target.fixed_tokens)
    if config.drafter == "mtp":
        from .mtp import MtpHead, find_layout

        layout = find_layout(checkpoint, len(target.spec.layers))
        return MtpHead(target, checkpoint, layout, tokens=tokens)
    from .eagle3 import Eagle3Head

    return Eagle3Head(target, open_checkpoint(config.draft_model_path), tokens=tokens)


def _load_hidden(
    head: HiddenHead, target: Decoder, limits: DraftLimits, context: int, step_tokens: int
) -> Drafting:
    from .hidden_drafter import HiddenDrafter, head_fields, predict_bytes

    taps = target.tap(head.tap_layers)
    work = predict_bytes(head, limits, context, target.vocab_size)

    def opened(tables: BlockTables, pool: KvPool) -> HiddenDrafter:
        taps.reserve(step_tokens)
        return HiddenDrafter(head, tables, pool, limits, vocabulary=target.vocab_size)

    return Drafting(
        opened,
        head_fields(head, limits),
        head.weight_bytes,
        work + taps.predict_bytes(step_tokens),
        head.matrices,
    )
