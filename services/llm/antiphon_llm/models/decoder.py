"""The decoder core that the families share.

Tokens are flat: row n of every activation is token n of the step, whatever request it
belongs to. A row's arithmetic never depends on the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from antiphon_core.logs import get_logger
from antiphon_kernels.paged_attention import decode_queries, new_workspace
from antiphon_nn.graph_ability import GraphAbility, common_ability
from antiphon_nn.layers import DenseEmbedding, DenseLinear, Embedding, Projection, RMSNorm
from antiphon_nn.rotary import RopeSettings, RotaryEmbedding

from antiphon_llm.kvcache.fields import FieldSpec
from antiphon_llm.kvcache.row_map import RowMap

from .adapters import AdaptedTokens, ModelAdapters
from .block import AttentionMeta, Block, CacheView, WantedRows, normed
from .config_reader import UnsupportedConfig
from .loader import Loader
from .programs import DecodePrograms
from .spec import DecoderSpec, LayerSpec
from .taps import HiddenTaps
from .workspace import FIXED_TOKENS, LayerViews, Workspace

if TYPE_CHECKING:
    from antiphon_nn.checkpoint import Checkpoint

_log = get_logger(__name__)

IGNORED_TENSORS = (r".*\.rotary_emb\.inv_freq",)
"""Checkpoint tensors that are recomputed here."""


def drafting_tensors(checkpoint: Checkpoint, spec: DecoderSpec) -> list[str]:
    """Rules for the tensors of a bundled drafting head, which the model itself does not read."""
    layers = len(spec.layers)
    heads = int(checkpoint.config.get("num_nextn_predict_layers") or 0)
    behind = [rf"model\.layers\.{layer}\..*" for layer in range(layers, layers + heads)]
    return [r"mtp\..*", *behind]


class Decoder:
    """Embedding, blocks, final norm and head over a checkpoint's weights.

    In fp32 on CPU the weights stay packed in their file's format; elsewhere they are dense,
    dequantised at load, and activations, residual stream and cache share their dtype: that is
    what the checkpoints were trained in, and it halves the traffic of a step's small kernels.
    Norm statistics, attention sums and logits are fp32 everywhere.

    Attributes:
        kv_rows: the rows that its attention modules have in the KV pool, in their order.
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
        self.fixed_tokens = fixed_tokens
        load = Loader(spec, checkpoint, self.device, dtype)
        self.packed = load.packed
        self._embedding = load.embedding("model.embed_tokens")
        self._ropes: dict[int, RotaryEmbedding] = {}
        self._attention_workspaces: dict[tuple[int, int, int], torch.Tensor | None] = {}
        self._blocks = [
            Block(
                spec,
                layer,
                load,
                f"model.layers.{index}",
                self._rope(layer.rope),
                self._attention_workspace(layer),
            )
            for index, layer in enumerate(spec.layers)
        ]
        self.kv_rows = RowMap(
            (str(index), (block.layer.kv_heads, block.layer.head_dim))
            for index, block in enumerate(self._blocks)
        )
        self.workspace = Workspace(spec, device=self.device, dtype=dtype, fixed_tokens=fixed_tokens)
        self.programs = DecodePrograms(enabled=self.packed)
        self._taps: HiddenTaps | None = None
        self.adapters: ModelAdapters | None = None
        """The adapters by slot; None until they are served."""
        self._final_norm = load.norm("model.norm")
        self._head, self.tied_head = self._load_head(load, checkpoint)
        checkpoint.check_coverage((*IGNORED_TENSORS, *drafting_tensors(checkpoint, spec)))

    @property
    def vocab_size(self) -> int:
        """Width V of the head."""
        return self.spec.vocab_size

    @property
    def projections(self) -> list[Projection]:
        """The products of one step in their order, the head last."""
        return [part for block in self._blocks for part in block.projections] + [self._head]

    def graph_ability(self) -> tuple[GraphAbility, dict[str, list[str]]]:
        """Steps that a device can record, and the classes of parts that stand in the way."""
        return common_ability([self._embedding, *self._blocks, *self.projections])

    @property
    def matrices(self) -> list[torch.Tensor]:
        """The dense matrices, the embedding's among them; none where weights are packed."""
        parts = [*self.projections, self._embedding]
        return [part.weight for part in parts if isinstance(part, DenseLinear | DenseEmbedding)]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices as stored, a tied head counted once."""
        products = sum(projection.nbytes for projection in self.projections)
        return products + (0 if self.tied_head else self._embedding.nbytes)

    def kv_fields(self, entry_tokens: int) -> list[FieldSpec]:
        """What one KV entry holds: keys and values of each built layer, of its own geometry."""
        return self.kv_rows.fields(entry_tokens, self.dtype)

    @property
    def embedding(self) -> Embedding | DenseEmbedding:
        """The token embeddings, which a drafter may share."""
        return self._embedding

    @property
    def final_norm(self) -> RMSNorm:
        """The norm between the last layer and the head."""
        return self._final_norm

    def tap(self, layers: Sequence[int]) -> HiddenTaps:
        """Has every further forward keep the residual stream behind these layers, of all its
        tokens; with no layer, of the last alone, which costs nothing.

        Raises ValueError for a layer that the model does not have.
        """
        unknown = sorted(set(layers) - set(range(len(self._blocks))))
        if unknown:
            raise ValueError(
                f"layers {unknown} cannot be tapped; the model has 0 to {len(self._blocks) - 1}"
            )
        self._taps = HiddenTaps(
            layers,
            hidden_size=self.spec.hidden_size,
            packed=self.packed,
            fixed_tokens=self.fixed_tokens,
            device=self.device,
            dtype=self.dtype,
        )
        return self._taps

    def serve_adapters(self, count: int, rank_max: int) -> ModelAdapters:
        """Makes room for so many adapters of ranks up to ``rank_max``."""
        self.adapters = ModelAdapters(
            self.spec, count=count, rank_max=rank_max, dtype=self.dtype, device=self.device
        )
        for block, layer in zip(self._blocks, self.adapters.layers, strict=True):
            block.adapters = layer
        return self.adapters

    def residual(self, tokens: int) -> torch.Tensor:
        """(N, H) of the last forward, which fed N tokens, before the final norm; valid until the
        next. It is the residual stream itself: nothing is computed for it."""
        return self.workspace.views(tokens).hidden

    def tapped(self, tokens: int) -> dict[int, torch.Tensor]:
        """(N, H) by tapped layer, of the last forward; valid until the next."""
        return {} if self._taps is None else self._taps.views(tokens)

    def forward(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[CacheView],
        drawn: torch.Tensor | None = None,
        wanted: WantedRows | None = None,
        adapted: AdaptedTokens | None = None,
    ) -> torch.Tensor:
        """Final hidden states (N, H) of token ids (N) at absolute positions (N), int32.

        They are workspace of the decoder, valid until the next call. Stores the tokens' keys
        and values in ``views``, one per layer. An id ``-1 - r`` stands for ``drawn[r]``, int32.

        With ``wanted`` the result is (R, H), of those tokens alone: the others' part in the
        last layer ends with their keys and values. Only for steps where :meth:`prunes`.
        Without ``adapted`` all tokens are the model's own.
        """
        work = self.workspace.views(ids.shape[0])
        self._embedding(ids, work.hidden, drawn)
        if wanted is not None:
            return self._run_wanted(positions, meta, views, work, wanted, adapted)
        self.programs.run(
            positions,
            meta,
            views,
            lambda: self._run_blocks(positions, meta, views, work, adapted),
            adapters=None if adapted is None else adapted.slots,
        )
        if self._taps is not None:
            self._taps.join(ids.shape[0])
        return work.normed

    def _run_blocks(
        self,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[CacheView],
        work: LayerViews,
        adapted: AdaptedTokens | None,
    ) -> None:
        """Runs the residual stream in ``work`` through the blocks and the final norm.

        What a half block adds to the stream lies *apart* in ``work.update`` until the next
        norm joins it, unless its product has added it already.
        """
        apart = False
        for index, (block, view) in enumerate(zip(self._blocks, views, strict=True)):
            block.store_keys_values(positions, meta, view, work, apart, adapted)
            apart = block.feed_forward(work, block.attend(meta, view, work, adapted), adapted)
            if self._taps is not None:
                self._taps.keep(index, work, apart)
        normed(self._final_norm, work, apart)

    def reserve(self, tokens: int) -> None:
        """Takes the memory of the widest step, so that what it works in never moves again."""
        self.workspace.reserve(tokens)

    def prunes(self, tokens: int, wanted: int) -> bool:
        """Whether a step of so many tokens can leave out what only its unread ones need.

        The wanted ones move to the fixed part of the workspace, the step must lie elsewhere.
        Taps read all tokens.
        """
        return self._taps is None and wanted <= self.fixed_tokens < tokens

    def _run_wanted(
        self,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[CacheView],
        work: LayerViews,
        wanted: WantedRows,
        adapted: AdaptedTokens | None,
    ) -> torch.Tensor:
        """As ``_run_blocks``, with the last layer's output for the wanted tokens alone."""
        apart = False
        last, last_view = self._blocks[-1], views[-1]
        for block, view in zip(self._blocks[:-1], views[:-1], strict=True):
            block.store_keys_values(positions, meta, view, work, apart, adapted)
            apart = block.feed_forward(work, block.attend(meta, view, work, adapted), adapted)
        last.store_keys_values(positions, meta, last_view, work, apart, adapted)
        if not wanted.tokens.shape[0]:
            return work.normed[:0]
        few = self.workspace.views(wanted.tokens.shape[0])
        torch.index_select(work.qkv, 0, wanted.tokens, out=few.qkv)
        torch.index_select(work.hidden, 0, wanted.tokens, out=few.hidden)
        few_adapted = None if adapted is None else adapted.select(wanted.tokens)
        apart = last.feed_forward(
            few, last.attend(wanted, last_view, few, few_adapted), few_adapted
        )
        normed(self._final_norm, few, apart)
        return few.normed

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

    def _attention_workspace(self, layer: LayerSpec) -> torch.Tensor | None:
        """Layers of one geometry share the memory in which split contexts are joined."""
        if self.device.type == "cpu":
            return None
        geometry = layer.heads, layer.kv_heads, layer.head_dim
        if geometry not in self._attention_workspaces:
            queries = decode_queries(layer.heads // layer.kv_heads)
            self._attention_workspaces[geometry] = new_workspace(*geometry, queries, self.device)
        return self._attention_workspaces[geometry]

    def _load_head(self, load: Loader, checkpoint: Checkpoint) -> tuple[Projection, bool]:
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
