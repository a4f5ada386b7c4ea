"""The multi-token prediction head that comes in a target's own checkpoint.

``x = W [norm(E[token]); norm(h)]``, one block of the target's own kind, a norm and the target's
head; trained to predict one token further than the target does (DeepSeek-V3 technical report,
section 2.2). For more than one draft it is chained on its own output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from antiphon_nn.checkpoint import Checkpoint
from antiphon_nn.layers import DenseEmbedding, Embedding, Projection

from antiphon_llm.models.config_reader import UnsupportedConfig
from antiphon_llm.models.decoder import IGNORED_TENSORS
from antiphon_llm.models.loader import Loader
from antiphon_llm.models.workspace import LayerViews

from .head import HiddenHead

if TYPE_CHECKING:
    from antiphon_llm.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class MtpLayout:
    """Where a family keeps its head, and what the head was trained on.

    The wrong order of the halves, or a hidden state from the wrong side of the final norm, runs
    all the same: only the acceptance shows it.
    """

    family: str
    block: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    embedding: str
    """The head's own, or a copy of the target's, where the checkpoint has it."""
    head: str
    after_final_norm: bool
    """Whether ``h`` is the target's hidden state behind its final norm; in a chain, the head's
    behind its own."""


def layouts(layers: int) -> tuple[MtpLayout, ...]:
    """The known layouts in the checkpoint of a target of so many layers."""
    deepseek = f"model.layers.{layers}"
    return (
        MtpLayout(
            "Qwen3-Next", "mtp.layers.0", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden",
            "mtp.fc", "mtp.norm", "mtp.embed_tokens", "mtp.lm_head", after_final_norm=True,
        ),
        MtpLayout(
            "DeepSeek", deepseek, f"{deepseek}.enorm", f"{deepseek}.hnorm",
            f"{deepseek}.eh_proj", f"{deepseek}.shared_head.norm", f"{deepseek}.embed_tokens",
            f"{deepseek}.shared_head.head", after_final_norm=True,
        ),
    )  # fmt: skip


class MtpHead(HiddenHead):
    """The head of a layout, over the target's embedding and head unless it has its own."""

    name = "mtp"

    def __init__(
        self, target: Decoder, checkpoint: Checkpoint, layout: MtpLayout, *, tokens: int
    ) -> None:
        spec = target.spec
        if spec.layers[-1].window:
            raise UnsupportedConfig(
                f"{spec.family}: an MTP head whose layer attends through a window of "
                f"{spec.layers[-1].window} is not served; supported is full attention"
            )
        hidden = spec.hidden_size
        load = Loader(spec, checkpoint, target.device, target.dtype)
        self._own_embedding = _own_embedding(checkpoint, layout, load)
        super().__init__(
            replace(spec, layers=spec.layers[-1:]),
            load,
            block=layout.block,
            norm=layout.norm,
            embedding=self._own_embedding or target.embedding,
            positions=spec.context_limit,
            tokens=tokens,
            device=target.device,
            dtype=target.dtype,
        )
        self.layout = layout
        self._target = target
        self._embedding_norm = load.norm(layout.embedding_norm)
        self._hidden_norm = load.norm(layout.hidden_norm)
        wide = checkpoint.shape(f"{layout.projection}.weight")
        if wide != (hidden, 2 * hidden):
            raise UnsupportedConfig(
                f"{spec.family}: {layout.projection} is {wide}, expected {(hidden, 2 * hidden)}"
            )
        self._projection = load.linear([layout.projection], [hidden], bias=False)
        self._head = _own_head(target, checkpoint, layout, load)
        checkpoint.check_coverage((*IGNORED_TENSORS, *further_heads(checkpoint, len(spec.layers))))

    @property
    def _parts(self) -> list[Projection | Embedding | DenseEmbedding]:
        own = [part for part in (self._head, self._own_embedding) if part is not None]
        return [*self._block.projections, self._projection, *own]

    def features(self, hidden: torch.Tensor, taps: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """See HiddenHead."""
        return self._target.final_norm(hidden) if self.layout.after_final_norm else hidden

    def _enter(self, ids: torch.Tensor, features: torch.Tensor, work: LayerViews) -> None:
        joined, first, second = self._halves(ids.shape[0])
        self._embedding_norm(self._embed(ids), first)
        self._hidden_norm(features, second)
        self._projection(joined, work.hidden)
        self._block.attention_norm(work.hidden, work.normed)
        self._block.project(work.normed, work)

    def _leave(self, work: LayerViews, logits: torch.Tensor) -> torch.Tensor:
        if self._head is None:
            self._target.head(work.normed, logits)
        else:
            self._head(work.normed, logits)
        return work.normed if self.layout.after_final_norm else work.hidden


def find_layout(checkpoint: Checkpoint, layers: int) -> MtpLayout:
    """The layout that the checkpoint has a head in; UnsupportedConfig if it has none."""
    known = layouts(layers)
    for layout in known:
        if f"{layout.projection}.weight" in checkpoint:
            return layout
    names = " or ".join(f"{layout.projection}.weight ({layout.family})" for layout in known)
    raise UnsupportedConfig(f"drafter is 'mtp', but {checkpoint.path} has no MTP head: no {names}")


def further_heads(checkpoint: Checkpoint, layers: int) -> list[str]:
    """Names of heads behind the first one; that is chained instead."""
    count = int(checkpoint.config.get("num_nextn_predict_layers") or 0)
    return [rf"model\.layers\.{layers + index}\..*" for index in range(1, count)]


def _own_embedding(
    checkpoint: Checkpoint, layout: MtpLayout, load: Loader
) -> Embedding | DenseEmbedding | None:
    """The head's own embedding; None where the target's serves."""
    name = f"{layout.embedding}.weight"
    if name not in checkpoint or _same(checkpoint, name, "model.embed_tokens.weight"):
        return None
    return load.embedding(layout.embedding)


def _own_head(
    target: Decoder, checkpoint: Checkpoint, layout: MtpLayout, load: Loader
) -> Projection | None:
    """The head's own output projection; None where the target's serves."""
    name = f"{layout.head}.weight"
    shared = "lm_head.weight" if "lm_head.weight" in checkpoint else "model.embed_tokens.weight"
    if name not in checkpoint or _same(checkpoint, name, shared):
        return None
    return load.linear([layout.head], [target.spec.vocab_size], bias=False)


def _same(checkpoint: Checkpoint, name: str, other: str) -> bool:
    return torch.equal(checkpoint.tensor(name), checkpoint.tensor(other))
