"""An EAGLE-3 head: features fused from three layers of the target, one layer, its own vocabulary.

``f = W_fc [h_low; h_mid; h_high]`` of the target's position, or the layer's own output in a
chain; the layer attends over ``[norm(E[token]); norm(f)]`` with ``f`` as the residual stream
(EAGLE-3, 2025). Its head may know a part of the target's vocabulary only: ``d2t[i]`` is then the
distance from the draft id i to the target's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from antiphon_core.logs import get_logger
from antiphon_nn.checkpoint import Checkpoint
from antiphon_nn.layers import DenseEmbedding, Embedding, Projection

from antiphon_llm.models.config_reader import ConfigReader, UnsupportedConfig
from antiphon_llm.models.loader import Loader
from antiphon_llm.models.spec import DecoderSpec, LayerSpec, attention_shape, common_fields, rope_of
from antiphon_llm.models.workspace import LayerViews

from .head import HiddenHead

if TYPE_CHECKING:
    from antiphon_llm.models.decoder import Decoder

_log = get_logger(__name__)

_FAMILY = "EAGLE3"
_BLOCKS = ("midlayer", "layers.0")
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
IGNORED_TENSORS = ("t2d",)
"""Which target ids have a draft id: what d2t says already."""


class Eagle3Head(HiddenHead):
    """The head of a draft checkpoint for a target."""

    name = "eagle3"

    def __init__(self, target: Decoder, checkpoint: Checkpoint, *, tokens: int) -> None:
        reader = ConfigReader(checkpoint.config, _FAMILY)
        spec = _spec(reader, target)
        draft_vocabulary = reader.integer("draft_vocab_size", spec.vocab_size)
        self.tap_layers = _taps(reader, len(target.spec.layers))
        self._norm_first = reader.flag("norm_before_residual", False)
        reader.choice("norm_before_fc", (False,), False)
        load = Loader(spec, checkpoint, target.device, target.dtype)
        block = next((name for name in _BLOCKS if f"{name}.hidden_norm.weight" in checkpoint), None)
        if block is None:
            raise UnsupportedConfig(
                f"{_FAMILY}: {checkpoint.path} has no "
                + " or ".join(f"{name}.hidden_norm.weight" for name in _BLOCKS)
            )
        own = "embed_tokens.weight" in checkpoint
        self._own_embedding = load.embedding("embed_tokens") if own else None
        super().__init__(
            spec,
            load,
            block=block,
            norm="norm",
            embedding=self._own_embedding or target.embedding,
            positions=target.spec.context_limit,
            tokens=tokens,
            device=target.device,
            dtype=target.dtype,
        )
        self._hidden_norm = load.norm(f"{block}.hidden_norm")
        _check_width(checkpoint, "fc.weight", len(self.tap_layers) * target.spec.hidden_size)
        _check_width(checkpoint, f"{block}.self_attn.q_proj.weight", 2 * spec.hidden_size)
        self._fuse = load.linear(["fc"], [spec.hidden_size], bias=False)
        self._head = load.linear(["lm_head"], [draft_vocabulary], bias=False)
        self._ids = _target_ids(checkpoint, draft_vocabulary, spec.vocab_size, target.device)
        self._compact = torch.empty((tokens, draft_vocabulary), device=target.device)
        checkpoint.check_coverage(IGNORED_TENSORS)
        unread = reader.unread()
        if unread:
            _log.warning("config_keys_not_used", architecture=_FAMILY, keys=unread)

    @property
    def _parts(self) -> list[Projection | Embedding | DenseEmbedding]:
        own = [] if self._own_embedding is None else [self._own_embedding]
        return [*self._block.projections, self._fuse, self._head, *own]

    @property
    def work_bytes(self) -> int:
        """See HiddenHead."""
        return super().work_bytes + self._compact.nbytes

    def features(self, hidden: torch.Tensor, taps: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """See HiddenHead."""
        return self._fuse(torch.cat([taps[layer] for layer in self.tap_layers], dim=1))

    def _enter(self, ids: torch.Tensor, features: torch.Tensor, work: LayerViews) -> None:
        joined, first, second = self._halves(ids.shape[0])
        self._block.attention_norm(self._embed(ids), first)
        self._hidden_norm(features, second)
        work.hidden.copy_(second if self._norm_first else features)
        self._block.project(joined, work)

    def _leave(self, work: LayerViews, logits: torch.Tensor) -> torch.Tensor:
        if self._ids is None:
            self._head(work.normed, logits)
        else:
            compact = self._compact[: logits.shape[0]]
            self._head(work.normed, compact)
            logits.fill_(-torch.inf).index_copy_(1, self._ids, compact)
        return work.hidden


def _spec(reader: ConfigReader, target: Decoder) -> DecoderSpec:
    """The one layer; UnsupportedConfig names what does not fit the target."""
    heads, kv_heads, head_dim = attention_shape(reader)
    reader.choice("hidden_act", ("silu",), "silu")
    reader.choice("num_hidden_layers", (1,), 1)
    reader.choice("vocab_size", (target.spec.vocab_size,))
    reader.choice("hidden_size", (target.spec.hidden_size,))
    reader.choice("target_hidden_size", (target.spec.hidden_size,), target.spec.hidden_size)
    bias = reader.flag("attention_bias", False)
    layer = LayerSpec(
        heads, kv_heads, head_dim, scale=head_dim**-0.5, rope=rope_of(reader, head_dim)
    )
    return DecoderSpec(
        **common_fields(reader, tied_default=False),
        layers=(layer,),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=reader.flag("mlp_bias", False),
    )


def _taps(reader: ConfigReader, layers: int) -> tuple[int, ...]:
    """Layers whose output is fused.

    Two conventions are published. Inside ``eagle_config`` a number is the layer whose output is
    taken; at the top level, and by default, the layer whose input is.
    """
    nested = (reader.raw("eagle_config", {}) or {}).get(_LAYER_IDS)
    if nested is not None:
        taps = tuple(int(layer) for layer in nested)
    else:
        entered = reader.raw(_LAYER_IDS, [2, layers // 2, layers - 3])
        taps = tuple(int(layer) - 1 for layer in entered)
    if not taps or not all(0 <= layer < layers for layer in taps):
        raise UnsupportedConfig(
            f"{_FAMILY}: {_LAYER_IDS} taps the outputs of layers {list(taps)}, the target has 0 "
            f"to {layers - 1}"
        )
    return taps


def _target_ids(
    checkpoint: Checkpoint, draft_vocabulary: int, vocabulary: int, device: torch.device
) -> torch.Tensor | None:
    """int64 (draft vocabulary), the target's ids; None where they are the same."""
    if "d2t" not in checkpoint:
        if draft_vocabulary != vocabulary:
            raise UnsupportedConfig(
                f"{_FAMILY}: draft_vocab_size {draft_vocabulary} is not the target's {vocabulary} "
                "and there is no tensor d2t"
            )
        return None
    offsets = checkpoint.integers("d2t")
    if offsets.shape != (draft_vocabulary,):
        raise UnsupportedConfig(
            f"{_FAMILY}: d2t is {tuple(offsets.shape)}, expected {(draft_vocabulary,)}"
        )
    ids = torch.arange(draft_vocabulary) + offsets
    if len(ids.unique()) != len(ids) or int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise UnsupportedConfig(
            f"{_FAMILY}: d2t does not map into the target's {vocabulary} ids one to one"
        )
    return ids.to(device)


def _check_width(checkpoint: Checkpoint, name: str, width: int) -> None:
    found = checkpoint.shape(name)[1]
    if found != width:
        raise UnsupportedConfig(f"{_FAMILY}: {name} takes {found} inputs, expected {width}")
