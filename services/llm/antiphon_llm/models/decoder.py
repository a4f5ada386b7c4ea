"""The decoder core that the families share.

Tokens are flat: row n of every activation is token n of the step, whatever request it
belongs to. A row's arithmetic never depends on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from antiphon_core.logs import get_logger
from antiphon_kernels.gated_activation import gelu_tanh_mul, silu_mul
from antiphon_kernels.paged_attention import paged_attention
from antiphon_kernels.store_kv import store_kv
from antiphon_nn.layers import (
    DenseEmbedding,
    DenseLinear,
    Embedding,
    Linear,
    Projection,
    RMSNorm,
)
from antiphon_nn.rotary import RopeSettings, RotaryEmbedding

from antiphon_llm.kvcache.fields import FieldSpec

from .config_reader import UnsupportedConfig
from .programs import DecodePrograms
from .spec import DecoderSpec, LayerSpec
from .workspace import FIXED_TOKENS, LayerViews, Workspace

if TYPE_CHECKING:
    from antiphon_nn.checkpoint import Checkpoint

_log = get_logger(__name__)

_ACTIVATIONS = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}

IGNORED_TENSORS = (r".*\.rotary_emb\.inv_freq",)
"""Checkpoint tensors that are recomputed here."""


class AttentionMeta(Protocol):
    """What attention reads of a step; see StepBatch for shapes."""

    @property
    def query_start(self) -> torch.Tensor: ...
    @property
    def context_len(self) -> torch.Tensor: ...
    @property
    def block_table(self) -> torch.Tensor: ...
    @property
    def write_slot(self) -> torch.Tensor: ...
    @property
    def block_tokens(self) -> int: ...


class CacheView(Protocol):
    """One layer's keys and values, ``(slots, kv_heads, head_dim)`` each."""

    @property
    def keys(self) -> torch.Tensor: ...
    @property
    def values(self) -> torch.Tensor: ...


class Decoder:
    """Embedding, blocks, final norm and head over a checkpoint's weights.

    In fp32 on CPU the weights stay packed in their file's format; elsewhere they are dense,
    dequantised at load, and activations, residual stream and cache share their dtype: that is
    what the checkpoints were trained in, and it halves the traffic of a step's small kernels.
    Norm statistics, attention sums and logits are fp32 everywhere.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        checkpoint: Checkpoint,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        fixed_tokens: int = FIXED_TOKENS,
    ) -> None:
        self.spec = spec
        self.device = torch.device(device)
        self.dtype = dtype
        load = _Loader(spec, checkpoint, self.device, dtype)
        self.packed = load.packed
        self._embedding = load.embedding("model.embed_tokens")
        self._ropes: dict[int, RotaryEmbedding] = {}
        self._blocks = [
            _Block(spec, layer, load, f"model.layers.{index}", self._rope(layer.rope))
            for index, layer in enumerate(spec.layers)
        ]
        self._workspace = Workspace(
            spec, device=self.device, dtype=dtype, fixed_tokens=fixed_tokens
        )
        self.programs = DecodePrograms(enabled=self.packed)
        self._final_norm = load.norm("model.norm")
        self._head, self.tied_head = self._load_head(load, checkpoint)
        checkpoint.check_coverage(IGNORED_TENSORS)

    @property
    def vocab_size(self) -> int:
        """Width V of the head."""
        return self.spec.vocab_size

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices as stored, a tied head counted once."""
        blocks = sum(block.weight_bytes for block in self._blocks)
        head = 0 if self.tied_head else self._head.nbytes
        return blocks + head + self._embedding.nbytes

    def kv_fields(self, entry_tokens: int) -> list[FieldSpec]:
        """What one KV entry holds: keys and values of each built layer."""
        return [
            FieldSpec(f"{index}.{side}", entry_tokens, (layer.kv_heads, layer.head_dim), self.dtype)
            for index, layer in enumerate(self.spec.layers)
            for side in ("keys", "values")
        ]

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[CacheView],
    ) -> torch.Tensor:
        """Final hidden states (N, H) of token ids (N) at absolute positions (N), int32.

        They are workspace of the decoder, valid until the next call. Stores the tokens' keys
        and values in ``views``, one per layer.
        """
        work = self._workspace.views(ids.shape[0])
        self._embedding(ids, work.hidden)
        self.programs.run(
            positions, meta, views, lambda: self._run_blocks(positions, meta, views, work)
        )
        return work.normed

    def _run_blocks(
        self,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[CacheView],
        work: LayerViews,
    ) -> None:
        """Runs the residual stream in ``work`` through the blocks and the final norm."""
        joined = work.normed, work.hidden
        for index, (block, view) in enumerate(zip(self._blocks, views, strict=True)):
            if index == 0:
                block.attention_norm(work.hidden, work.normed)
            else:
                block.attention_norm.add(work.update, work.hidden, joined)
            block.attention(positions, meta, view, work)
            block.feed_forward_norm.add(work.update, work.hidden, joined)
            block.feed_forward(work)
        self._final_norm.add(work.update, work.hidden, joined)

    def head(self, hidden: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """fp32 logits (R, V) of hidden rows (R, H), written to ``out`` and returned."""
        self._head(hidden, out)
        if self.spec.final_softcap:
            out.div_(self.spec.final_softcap).tanh_().mul_(self.spec.final_softcap)
        return out

    def _rope(self, settings: RopeSettings) -> RotaryEmbedding:
        """Layers with the same settings object share one pair of tables."""
        if id(settings) not in self._ropes:
            self._ropes[id(settings)] = RotaryEmbedding(
                settings, self.spec.context_limit, self.device
            )
        return self._ropes[id(settings)]

    def _load_head(self, load: _Loader, checkpoint: Checkpoint) -> tuple[Projection, bool]:
        """The head and whether it shares the embedding's storage."""
        family = self.spec.family
        if "lm_head.weight" not in checkpoint:
            if not self.spec.tied_head:
                raise UnsupportedConfig(
                    f"{family}: tie_word_embeddings is false but there is no lm_head.weight"
                )
            return self._embedding.head(), True
        if self.spec.tied_head:
            head = checkpoint.tensor("lm_head.weight")
            if torch.equal(head, checkpoint.tensor("model.embed_tokens.weight")):
                return self._embedding.head(), True
            _log.warning("tied_head_differs", family=family, used="lm_head.weight")
        return load.linear(["lm_head"], [self.spec.vocab_size], bias=False), False


class _Block:
    """One decoder layer."""

    def __init__(
        self,
        spec: DecoderSpec,
        layer: LayerSpec,
        load: _Loader,
        prefix: str,
        rope: RotaryEmbedding,
    ) -> None:
        self._layer = layer
        self._rope = rope
        heads, kv_heads, dim = layer.heads, layer.kv_heads, layer.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self._qkv = load.linear(
            [f"{attention}.{part}_proj" for part in "qkv"],
            [heads * dim, kv_heads * dim, kv_heads * dim],
            bias=spec.qkv_bias,
        )
        self._output = load.linear([f"{attention}.o_proj"], [spec.hidden_size], spec.output_bias)
        self._gate_up = load.linear(
            [f"{mlp}.gate_proj", f"{mlp}.up_proj"], [spec.intermediate_size] * 2, spec.mlp_bias
        )
        self._down = load.linear([f"{mlp}.down_proj"], [spec.hidden_size], spec.mlp_bias)
        self._activation = _ACTIVATIONS[spec.activation]
        self._query_norm = load.norm(f"{attention}.q_norm") if spec.qk_norm else None
        self._key_norm = load.norm(f"{attention}.k_norm") if spec.qk_norm else None
        self.attention_norm = load.norm(f"{prefix}.input_layernorm")
        self._attention_output_norm: RMSNorm | None = None
        self._feed_forward_output_norm: RMSNorm | None = None
        if spec.block_output_norms:
            self._attention_output_norm = load.norm(f"{prefix}.post_attention_layernorm")
            self.feed_forward_norm = load.norm(f"{prefix}.pre_feedforward_layernorm")
            self._feed_forward_output_norm = load.norm(f"{prefix}.post_feedforward_layernorm")
        else:
            self.feed_forward_norm = load.norm(f"{prefix}.post_attention_layernorm")

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices as stored."""
        parts = (self._qkv, self._output, self._gate_up, self._down)
        return sum(part.nbytes for part in parts)

    def attention(
        self,
        positions: torch.Tensor,
        meta: AttentionMeta,
        view: CacheView,
        work: LayerViews,
    ) -> None:
        """Attention's contribution to the residual stream, for ``work.normed``."""
        layer = self._layer
        self._qkv(work.normed, work.qkv)
        if self._query_norm is not None and self._key_norm is not None:
            self._query_norm(work.queries, work.queries)
            self._key_norm(work.keys, work.keys)
        self._rope(work.queries, work.keys, positions)
        store_kv(work.keys, work.values, view.keys, view.values, meta.write_slot)
        paged_attention(
            work.queries,
            view.keys,
            view.values,
            query_start=meta.query_start,
            context_len=meta.context_len,
            block_table=meta.block_table,
            block_tokens=meta.block_tokens,
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            out=work.mixed,
        )
        self._output(work.mixed_rows, work.update)
        if self._attention_output_norm is not None:
            self._attention_output_norm(work.update, work.update)

    def feed_forward(self, work: LayerViews) -> None:
        """The feed-forward contribution to the residual stream, for ``work.normed``."""
        self._gate_up(work.normed, work.gate_up)
        self._activation(work.gate, work.up, out=work.activated)
        self._down(work.activated, work.update)
        if self._feed_forward_output_norm is not None:
            self._feed_forward_output_norm(work.update, work.update)


class _Loader:
    """Reads a decoder's parts in the storage that its device wants, and checks them against
    the spec."""

    def __init__(
        self, spec: DecoderSpec, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self.packed = device.type == "cpu" and dtype == torch.float32

    def embedding(self, name: str) -> Embedding | DenseEmbedding:
        """The token embeddings with the family's scale."""
        shape = (self._spec.vocab_size, self._spec.hidden_size)
        stored = tuple(self._checkpoint.shape(f"{name}.weight"))
        if stored != shape:
            raise UnsupportedConfig(
                f"{self._spec.family}: embedding is {stored}, the config says {shape}"
            )
        if self.packed:
            packed = self._checkpoint.linear(f"{name}.weight")
            return Embedding(packed, self._spec.embedding_scale)
        dense = self._checkpoint.tensor(f"{name}.weight").to(self._device, self._dtype)
        return DenseEmbedding(dense, self._spec.embedding_scale)

    def norm(self, name: str) -> RMSNorm:
        """An RMSNorm with the family's convention."""
        weight = self._checkpoint.tensor(f"{name}.weight").to(self._device)
        return RMSNorm(weight, self._spec.norm_eps, plus_one=self._spec.norm_plus_one)

    def linear(self, names: Sequence[str], sizes: Sequence[int], bias: bool) -> Projection:
        """One projection, or several of one input, whose outputs must have these sizes."""
        for name in names:
            if (f"{name}.bias" in self._checkpoint) is not bias:
                raise UnsupportedConfig(
                    f"{self._spec.family}: the config says {name} has "
                    f"{'a' if bias else 'no'} bias, the checkpoint disagrees"
                )
        linear: Projection
        if self.packed:
            linear = Linear.load(self._checkpoint, *names)
        else:
            linear = DenseLinear.load(
                self._checkpoint, *names, device=self._device, dtype=self._dtype
            )
        if linear.sizes != list(sizes):
            raise UnsupportedConfig(
                f"{self._spec.family}: {', '.join(names)} have {linear.sizes} outputs, "
                f"the config says {list(sizes)}"
            )
        return linear
