"""Layers over checkpoint weights. They hold tensors and call kernels; nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from antiphon_kernels import quant_linear as kernel
from antiphon_kernels.embedding import embedding
from antiphon_kernels.quant_linear import PackedWeight
from antiphon_kernels.rms_norm import add_rms_norm, rms_norm
from antiphon_kernels.small_linear import MAX_ROWS, fuses, small_linear

from antiphon_nn.checkpoint import Checkpoint
from antiphon_nn.graph_ability import GraphAbility
from antiphon_nn.rotary import RopeSettings, RotaryEmbedding, rope_settings

__all__ = [
    "DenseEmbedding",
    "DenseLinear",
    "Embedding",
    "Linear",
    "Projection",
    "RMSNorm",
    "RopeSettings",
    "RotaryEmbedding",
    "rope_settings",
]


class Projection(Protocol):
    """A matrix product with a checkpoint's weights, whatever their storage."""

    sizes: list[int]
    """Outputs of each part; ``projection(x).split(sizes, dim=1)`` takes them apart."""

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        ...

    def folds(self, rows: int, *, norm: bool = False, gate: bool = False) -> bool:
        """Whether :meth:`folded` pays for so many rows, with a norm before or a gate after."""
        ...

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x (M, in_features) to (M, out_features)."""
        ...

    def folded(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        *,
        norm: RMSNorm | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """``act(linear(norm(x)))`` in one operation, written to ``out``.

        ``activation`` (silu or gelu_tanh) opens the second half of the outputs with the first.
        """
        ...

    def accumulate(self, x: torch.Tensor, residual: torch.Tensor) -> bool:
        """Adds the product to the residual (M, out_features), rounding once; False, and nothing
        is done, where products run alone."""
        ...


class Linear:
    """One projection, or several of one input whose outputs lie side by side.

    Weights of one format are stacked into one matrix (q, k, v or gate, up); others stay
    separate and write into their slice of the row. Results are the same.

    Attributes:
        sizes: outputs of each part; ``Linear(x).split(linear.sizes, dim=1)`` takes them apart.
        segments: the matrices as stored.
    """

    graph_ability: ClassVar = GraphAbility(decode=False, prefill=False)
    """Packed weights are multiplied by the processor, where there is nothing to record."""

    def __init__(
        self, weights: Sequence[PackedWeight], biases: Sequence[torch.Tensor | None] = ()
    ) -> None:
        if not weights or len({weight.shape[1] for weight in weights}) != 1:
            raise ValueError("a linear needs weights of one input dimension")
        self.sizes = [weight.shape[0] for weight in weights]
        self.in_features = weights[0].shape[1]
        self.out_features = sum(self.sizes)
        self.segments = [kernel.stack(run) for run in _runs(weights)]
        self._bias: torch.Tensor | None = None
        if any(bias is not None for bias in biases):
            parts = [
                torch.zeros(size) if bias is None else bias.float()
                for size, bias in zip(self.sizes, biases, strict=True)
            ]
            self._bias = torch.cat(parts)

    @classmethod
    def load(cls, checkpoint: Checkpoint, *names: str) -> Linear:
        """Reads ``<name>.weight`` and, where the checkpoint has it, ``<name>.bias``."""
        biases = [
            checkpoint.tensor(f"{name}.bias") if f"{name}.bias" in checkpoint else None
            for name in names
        ]
        return cls([checkpoint.linear(f"{name}.weight") for name in names], biases)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(segment.nbytes for segment in self.segments)

    def folds(self, rows: int, *, norm: bool = False, gate: bool = False) -> bool:
        """Never: packed products run alone."""
        return False

    def folded(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        *,
        norm: RMSNorm | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """Not served."""
        raise NotImplementedError("packed products run alone")

    def accumulate(self, x: torch.Tensor, residual: torch.Tensor) -> bool:
        """Not served."""
        return False

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x (M, in_features) to (M, out_features)."""
        if len(self.segments) == 1:
            return kernel.quant_linear(x, self.segments[0], self._bias, out)
        if out is None:
            out = torch.empty((x.shape[0], self.out_features), dtype=x.dtype, device=x.device)
        begin = 0
        for segment in self.segments:
            end = begin + segment.shape[0]
            bias = None if self._bias is None else self._bias[begin:end]
            kernel.quant_linear(x, segment, bias, out[:, begin:end])
            begin = end
        return out


def _runs(weights: Sequence[PackedWeight]) -> list[list[PackedWeight]]:
    """Neighbours that can be stacked, in order."""
    runs: list[list[PackedWeight]] = []
    for weight in weights:
        if runs and kernel.can_stack([*runs[-1], weight]):
            runs[-1].append(weight)
        else:
            runs.append([weight])
    return runs


class DenseLinear:
    """One projection, or several of one input, as one dense matrix.

    Attributes:
        sizes: outputs of each part.
        weight: (out_features, in_features).
        bias: (out_features) or None.
        folded_rows: up to so many rows the product takes its neighbours in.
    """

    graph_ability: ClassVar = GraphAbility(decode=True, prefill=True)

    def __init__(
        self, weight: torch.Tensor, sizes: Sequence[int], bias: torch.Tensor | None = None
    ) -> None:
        if weight.dim() != 2 or sum(sizes) != weight.shape[0]:
            raise ValueError(f"{tuple(weight.shape)} does not hold parts of {list(sizes)} outputs")
        self.sizes = list(sizes)
        self.weight = weight
        self.bias = bias
        self.folded_rows = MAX_ROWS

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, *names: str, device: torch.device, dtype: torch.dtype
    ) -> DenseLinear:
        """Reads ``<name>.weight`` and, where the checkpoint has it, ``<name>.bias``, and
        dequantises what the file has packed."""
        parts = [checkpoint.tensor(f"{name}.weight").to(device, dtype) for name in names]
        sizes = [part.shape[0] for part in parts]
        bias = None
        if any(f"{name}.bias" in checkpoint for name in names):
            bias = torch.cat(
                [
                    checkpoint.tensor(f"{name}.bias").to(device, dtype)
                    if f"{name}.bias" in checkpoint
                    else torch.zeros(size, device=device, dtype=dtype)
                    for name, size in zip(names, sizes, strict=True)
                ]
            )
        return cls(parts[0] if len(parts) == 1 else torch.cat(parts), sizes, bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x (M, in_features) to (M, out_features) of ``out``'s dtype, x's by default.

        An fp32 ``out`` of narrower operands takes the product's fp32 sums unrounded.
        """
        if out is not None and self.folds(x.shape[0]):
            return self.folded(x, out)
        transposed = self.weight.t()
        if out is None:
            product = torch.mm(x, transposed)
        elif out.dtype == x.dtype:
            product = torch.mm(x, transposed, out=out)
        elif x.is_cuda:
            product = torch.mm(x, transposed, out_dtype=out.dtype, out=out)
        else:
            product = torch.mm(x.to(out.dtype), transposed.to(out.dtype), out=out)
        return product if self.bias is None else product.add_(self.bias)

    def folds(self, rows: int, *, norm: bool = False, gate: bool = False) -> bool:
        """At the few rows where the kernel of few rows beats a tensor-core product."""
        return rows <= self.folded_rows and fuses(
            rows, self.weight.shape[0], norm=norm, activation=gate
        )

    def folded(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        *,
        norm: RMSNorm | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """``act(linear(norm(x)))`` in one operation, written to ``out``."""
        return small_linear(
            x,
            self.weight,
            self.bias,
            norm_weight=None if norm is None else norm.weight,
            eps=0.0 if norm is None else norm.eps,
            plus_one=norm is not None and norm.plus_one,
            activation=activation,
            out=out,
        )

    def accumulate(self, x: torch.Tensor, residual: torch.Tensor) -> bool:
        """Adds the product to the residual as it leaves the fp32 sums; always served."""
        if self.folds(x.shape[0]):
            small_linear(x, self.weight, self.bias, residual=residual, out=residual)
            return True
        residual.addmm_(x, self.weight.t())
        if self.bias is not None:
            residual.add_(self.bias)
        return True


class DenseEmbedding:
    """Token embeddings out of a dense matrix, which a tied head shares.

    Attributes:
        weight: (vocabulary, hidden).
        scale: factor of every row; Gemma's sqrt(hidden).
    """

    graph_ability: ClassVar = GraphAbility(decode=True, prefill=True)

    def __init__(self, weight: torch.Tensor, scale: float = 1.0) -> None:
        self.weight = weight
        self.scale = scale

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.weight.nbytes

    def __call__(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, drawn: torch.Tensor | None = None
    ) -> torch.Tensor:
        """ids (N) int32 to (N, hidden) of the weight's dtype.

        An id ``-1 - r`` stands for ``drawn[r]``, int32: the last token drawn for row r.
        """
        if drawn is not None:
            return embedding(ids, self.weight, drawn, scale=self.scale, out=out)
        rows = torch.index_select(self.weight, 0, ids, out=out)
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def head(self) -> DenseLinear:
        """The output projection over the same storage."""
        return DenseLinear(self.weight, [self.weight.shape[0]])


class Embedding:
    """Token embeddings out of a packed matrix, which a tied head shares.

    Attributes:
        weight: (vocabulary, hidden).
        scale: factor of every row; Gemma's sqrt(hidden).
    """

    graph_ability: ClassVar = GraphAbility(decode=False, prefill=False)
    """Packed weights are multiplied by the processor, where there is nothing to record."""

    def __init__(self, weight: PackedWeight, scale: float = 1.0) -> None:
        self.weight = weight
        self.scale = scale

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.weight.nbytes

    def __call__(
        self, ids: torch.Tensor, out: torch.Tensor | None = None, drawn: torch.Tensor | None = None
    ) -> torch.Tensor:
        """ids (N) to (N, hidden) fp32; an id ``-1 - r`` stands for ``drawn[r]``, int32."""
        if drawn is not None:
            ids = torch.where(ids < 0, drawn[(-1 - ids).clamp_(min=0)], ids)
        rows = kernel.gather_rows(self.weight, ids, out)
        return rows if self.scale == 1.0 else rows.mul_(self.scale)

    def head(self) -> Linear:
        """The output projection over the same storage."""
        return Linear([self.weight])


class RMSNorm:
    """RMS normalisation with a weight.

    Attributes:
        weight: (D) fp32, on the device of its inputs.
        plus_one: scale by 1 + weight, as the Gemma 1-3 checkpoints want.
    """

    def __init__(self, weight: torch.Tensor, eps: float, *, plus_one: bool = False) -> None:
        self.weight = weight.float().contiguous()
        self.eps = eps
        self.plus_one = plus_one

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Normalises the last axis of x (N, D) or (N, H, D)."""
        return rms_norm(x, self.weight, self.eps, plus_one=self.plus_one, out=out)

    def add(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(normalised sum, sum) of x and the residual stream, both (N, D)."""
        return add_rms_norm(x, residual, self.weight, self.eps, plus_one=self.plus_one, out=out)
