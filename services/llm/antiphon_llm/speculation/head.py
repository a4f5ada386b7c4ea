"""What the heads that draft from a target's hidden states have in common.

A head is one decoder layer. Position q reads the token there, and the *features* of position
q - 1: what the target's forward, or in a chain the head's own, left there. Its prediction is the
token at q + 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from antiphon_kernels.paged_attention import decode_queries, new_workspace
from antiphon_nn.layers import DenseEmbedding, DenseLinear, Embedding, Projection, RMSNorm
from antiphon_nn.rotary import RotaryEmbedding

from antiphon_llm.kvcache.row_map import RowMap
from antiphon_llm.models.block import AttentionMeta, Block, CacheView, StoredTokens, normed
from antiphon_llm.models.loader import Loader
from antiphon_llm.models.spec import DecoderSpec
from antiphon_llm.models.workspace import LayerViews, Workspace


class HiddenHead(ABC):
    """One layer over token embeddings and features, with a norm behind it.

    Args:
        spec: of a decoder with this layer alone; its vocabulary is the target's.
        load: reads the head's checkpoint.
        block: name of the layer in it.
        norm: name of the norm behind the layer.
        embedding: of the tokens.
        positions: rotary table length.
        tokens: most tokens of one call.

    Attributes:
        name: of the drafter.
        tap_layers: layers of the target whose output ``features`` reads.
        kv_rows: the one row that the layer has in the KV pool.
    """

    name: str
    tap_layers: tuple[int, ...] = ()

    def __init__(
        self,
        spec: DecoderSpec,
        load: Loader,
        *,
        block: str,
        norm: str,
        embedding: Embedding | DenseEmbedding,
        positions: int,
        tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        (layer,) = spec.layers
        self.spec = spec
        self.device, self.dtype = device, dtype
        self.tokens = tokens
        rope = RotaryEmbedding(layer.rope, positions, device)
        self._block = Block(spec, layer, load, block, rope, _attention_workspace(spec, device))
        self._norm: RMSNorm = load.norm(norm)
        self._embedding = embedding
        self._work = Workspace(spec, device=device, dtype=dtype, fixed_tokens=tokens)
        self._joined = torch.empty((tokens, 2 * spec.hidden_size), device=device, dtype=dtype)
        self._embedded = torch.empty((tokens, spec.hidden_size), device=device, dtype=dtype)
        self.kv_rows = RowMap([("0", (layer.kv_heads, layer.head_dim))])

    @property
    def width(self) -> int:
        """Features of a position."""
        return self.spec.hidden_size

    @property
    @abstractmethod
    def _parts(self) -> list[Projection | Embedding | DenseEmbedding]:
        """Everything with a matrix that the target does not have."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the matrices that the target does not have."""
        return sum(part.nbytes for part in self._parts)

    @property
    def matrices(self) -> list[torch.Tensor]:
        """Those of them that are dense."""
        dense = (part for part in self._parts if isinstance(part, DenseLinear | DenseEmbedding))
        return [part.weight for part in dense]

    @property
    def work_bytes(self) -> int:
        """Bytes of the memory that calls work in."""
        return self._work.nbytes + self._joined.nbytes + self._embedded.nbytes

    @abstractmethod
    def features(self, hidden: torch.Tensor, taps: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """(N, width) of the target's hidden states (N, H), before its final norm, and taps."""

    @abstractmethod
    def _enter(self, ids: torch.Tensor, features: torch.Tensor, work: LayerViews) -> None:
        """Leaves the layer's input as projected q, k and v, and the residual stream."""

    @abstractmethod
    def _leave(self, work: LayerViews, logits: torch.Tensor) -> torch.Tensor:
        """Writes fp32 logits (N, V) from the normalised stream; returns the features of the
        positions, (N, width), for the next token."""

    def store(
        self,
        ids: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        meta: StoredTokens,
        view: CacheView,
    ) -> None:
        """Writes the keys and values of N tokens; nothing attends to compute them.

        ``positions`` are the rotary ones, of the features.
        """
        work = self._work.views(ids.shape[0])
        self._enter(ids, features, work)
        self._block.store(positions, meta, view, work)

    def step(
        self,
        ids: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        meta: AttentionMeta,
        view: CacheView,
        logits: torch.Tensor,
    ) -> torch.Tensor:
        """One token for each of B rows: fp32 logits (B, V) into ``logits``, and the features to
        go on with (B, width), valid until the next call."""
        work = self._work.views(ids.shape[0])
        self._enter(ids, features, work)
        self._block.store(positions, meta, view, work)
        apart = self._block.feed_forward(work, self._block.attend(meta, view, work))
        normed(self._norm, work, apart)
        return self._leave(work, logits)

    def _embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self._embedding(ids, self._embedded[: ids.shape[0]])

    def _halves(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The joined input (N, 2 H) and its halves."""
        joined = self._joined[:tokens]
        first, second = joined.chunk(2, dim=1)
        return joined, first, second


def _attention_workspace(spec: DecoderSpec, device: torch.device) -> torch.Tensor | None:
    if device.type == "cpu":
        return None
    layer = spec.layers[0]
    queries = decode_queries(layer.heads // layer.kv_heads)
    return new_workspace(layer.heads, layer.kv_heads, layer.head_dim, queries, device)
