"""One decoder layer: attention and a gated feed-forward block over a residual stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from antiphon_kernels.gated_activation import gelu_tanh_mul, silu_mul
from antiphon_kernels.paged_attention import paged_attention
from antiphon_kernels.qk_rope_store import qk_rope_store
from antiphon_nn.graph_ability import GraphAbility
from antiphon_nn.layers import Projection, RMSNorm
from antiphon_nn.rotary import RotaryEmbedding

from .adapters import AdaptedTokens, LayerAdapters
from .loader import Loader
from .spec import DecoderSpec, LayerSpec
from .workspace import LayerViews

_ACTIVATIONS = {"silu": silu_mul, "gelu_tanh": gelu_tanh_mul}


class AttendedRows(Protocol):
    """Rows whose queries attend; see StepBatch for shapes."""

    @property
    def query_start(self) -> torch.Tensor: ...
    @property
    def context_len(self) -> torch.Tensor: ...
    @property
    def block_table(self) -> torch.Tensor: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def max_query(self) -> int: ...
    @property
    def max_context(self) -> int: ...


class StoredTokens(Protocol):
    """Tokens whose keys and values are stored."""

    @property
    def write_slot(self) -> torch.Tensor: ...


class AttentionMeta(AttendedRows, StoredTokens, Protocol):
    """What attention reads of a step."""


@dataclass(frozen=True, slots=True)
class WantedRows:
    """The rows of a step whose last layer's output somebody reads, and their tokens.

    Attributes:
        tokens: int64 (R), their place among the step's tokens, row by row; the last tokens of
            each row.
    """

    tokens: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    block_table: torch.Tensor
    block_tokens: int
    max_query: int
    max_context: int


class CacheView(Protocol):
    """One layer's keys and values, ``(slots, kv_heads, head_dim)`` each."""

    @property
    def keys(self) -> torch.Tensor: ...
    @property
    def values(self) -> torch.Tensor: ...


class Block:
    """One decoder layer."""

    graph_ability: ClassVar = GraphAbility(decode=True, prefill=True)
    """Attention is launched for a number of tokens and rows and a bound of their contexts."""

    def __init__(
        self,
        spec: DecoderSpec,
        layer: LayerSpec,
        load: Loader,
        prefix: str,
        rope: RotaryEmbedding,
        attention_workspace: torch.Tensor | None,
    ) -> None:
        self.layer = layer
        self.adapters: LayerAdapters | None = None
        """None where no adapters are served."""
        self._rope = rope
        self._attention_workspace = attention_workspace
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
        self._activation = spec.activation
        self._query_norm = load.norm(f"{attention}.q_norm") if spec.qk_norm else None
        self._key_norm = load.norm(f"{attention}.k_norm") if spec.qk_norm else None
        self._attention_norm = load.norm(f"{prefix}.input_layernorm")
        self._attention_output_norm: RMSNorm | None = None
        self._feed_forward_output_norm: RMSNorm | None = None
        if spec.block_output_norms:
            self._attention_output_norm = load.norm(f"{prefix}.post_attention_layernorm")
            self._feed_forward_norm = load.norm(f"{prefix}.pre_feedforward_layernorm")
            self._feed_forward_output_norm = load.norm(f"{prefix}.post_feedforward_layernorm")
        else:
            self._feed_forward_norm = load.norm(f"{prefix}.post_attention_layernorm")

    @property
    def projections(self) -> tuple[Projection, ...]:
        """The products in their order."""
        return self._qkv, self._output, self._gate_up, self._down

    def store_keys_values(
        self,
        positions: torch.Tensor,
        meta: AttentionMeta,
        view: CacheView,
        work: LayerViews,
        apart: bool,
        adapted: AdaptedTokens | None = None,
    ) -> None:
        """Leaves the tokens' queries in ``work``, their keys and values in ``view``, and the
        residual stream whole; ``apart`` says whether part of it lies in ``work.update``."""
        _project(self._qkv, self._attention_norm, work, apart, work.qkv, reread=adapted is not None)
        self._adapt("qkv", work.normed, work.qkv, adapted)
        self.store(positions, meta, view, work)

    @property
    def attention_norm(self) -> RMSNorm:
        """The norm before attention."""
        return self._attention_norm

    def project(self, x: torch.Tensor, work: LayerViews) -> None:
        """q, k and v of inputs (N, in_features) that the caller has normalised."""
        self._qkv(x, work.qkv)

    def store(
        self, positions: torch.Tensor, meta: StoredTokens, view: CacheView, work: LayerViews
    ) -> None:
        """Turns the projected q and k to their positions; keys and values go to the cache."""
        query_norm, key_norm = self._query_norm, self._key_norm
        qk_rope_store(
            work.qkv,
            view.keys,
            view.values,
            heads=self.layer.heads,
            positions=positions,
            write_slot=meta.write_slot,
            cos=self._rope.cos,
            sin=self._rope.sin,
            q_weight=None if query_norm is None else query_norm.weight,
            k_weight=None if key_norm is None else key_norm.weight,
            eps=0.0 if query_norm is None else query_norm.eps,
            plus_one=query_norm is not None and query_norm.plus_one,
        )

    def attend(
        self,
        rows: AttendedRows,
        view: CacheView,
        work: LayerViews,
        adapted: AdaptedTokens | None = None,
    ) -> bool:
        """Adds attention's contribution for the queries in ``work``; whether it lies apart."""
        layer = self.layer
        paged_attention(
            work.queries,
            view.keys,
            view.values,
            query_start=rows.query_start,
            context_len=rows.context_len,
            block_table=rows.block_table,
            block_tokens=rows.block_tokens,
            scale=layer.scale,
            window=layer.window,
            softcap=layer.softcap,
            max_query=rows.max_query,
            max_context=rows.max_context,
            workspace=self._attention_workspace,
            out=work.mixed,
        )
        return self._add(
            self._output, "output", work.mixed_rows, self._attention_output_norm, work, adapted
        )

    def feed_forward(
        self, work: LayerViews, apart: bool, adapted: AdaptedTokens | None = None
    ) -> bool:
        """Adds the feed-forward contribution; whether it lies apart, as ``apart`` says of what
        came before."""
        rows = work.hidden.shape[0]
        if adapted is not None:
            norm = self._feed_forward_norm
            _project(self._gate_up, norm, work, apart, work.gate_up, reread=True)
            self._adapt("gate_up", work.normed, work.gate_up, adapted)
            _ACTIVATIONS[self._activation](work.gate, work.up, out=work.activated)
        elif not apart and self._gate_up.folds(rows, norm=True, gate=True):
            self._gate_up.folded(
                work.hidden,
                work.activated,
                norm=self._feed_forward_norm,
                activation=self._activation,
            )
        elif self._gate_up.folds(rows, gate=True):
            normed(self._feed_forward_norm, work, apart)
            self._gate_up.folded(work.normed, work.activated, activation=self._activation)
        else:
            _project(self._gate_up, self._feed_forward_norm, work, apart, work.gate_up)
            _ACTIVATIONS[self._activation](work.gate, work.up, out=work.activated)
        return self._add(
            self._down, "down", work.activated, self._feed_forward_output_norm, work, adapted
        )

    def _add(
        self,
        linear: Projection,
        projection: str,
        x: torch.Tensor,
        norm: RMSNorm | None,
        work: LayerViews,
        adapted: AdaptedTokens | None,
    ) -> bool:
        """Adds ``norm(linear(x))`` to the residual stream; whether it lies apart."""
        if norm is None and linear.accumulate(x, work.hidden):
            self._adapt(projection, x, work.hidden, adapted)
            return False
        linear(x, work.update)
        self._adapt(projection, x, work.update, adapted)
        if norm is not None:
            norm(work.update, work.update)
        return True

    def _adapt(
        self, projection: str, x: torch.Tensor, out: torch.Tensor, adapted: AdaptedTokens | None
    ) -> None:
        """Adds the tokens' adapters to a projection's outputs of x."""
        if adapted is not None:
            assert self.adapters is not None
            self.adapters.add(projection, x, out, adapted)


def normed(norm: RMSNorm, work: LayerViews, apart: bool) -> None:
    """Leaves the normalised residual stream in ``work.normed``, whole."""
    if apart:
        norm.add(work.update, work.hidden, (work.normed, work.hidden))
    else:
        norm(work.hidden, work.normed)


def _project(
    linear: Projection,
    norm: RMSNorm,
    work: LayerViews,
    apart: bool,
    out: torch.Tensor,
    *,
    reread: bool = False,
) -> None:
    """``linear(norm(residual stream))``; with ``reread`` its input is left in ``work.normed``."""
    if not apart and linear.folds(out.shape[0], norm=True):
        linear.folded(work.hidden, out, norm=norm)
        if reread:
            normed(norm, work, apart)
    else:
        normed(norm, work, apart)
        linear(work.normed, out)
