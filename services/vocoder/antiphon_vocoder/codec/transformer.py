"""Mimi's streaming transformer: causal attention over a ring of keys and values a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from antiphon_kernels.ring_attention import MAX_STEPS, ring_attention
from antiphon_kernels.runtime import fall_back
from torch.nn import functional

from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec.weights import CodecWeights

POSITION = "position"
"""Name of the state's tensor (slots + 1) int64: positions that a slot has seen."""

RING = "ring"
"""Name of the state's tensor (slots + 1, layers, capacity, 2, heads, head_dim): keys, values."""

ALIGNMENT = 8
"""Rings are multiples of so many cells: attention kernels want aligned masks."""


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """Sizes, in the vocabulary of config.json; ``window`` counts the position itself."""

    hidden_size: int
    layers: int
    heads: int
    head_dim: int
    intermediate_size: int
    window: int
    theta: float
    norm_eps: float


def read_shape(weights: CodecWeights) -> TransformerShape:
    """What a config.json describes; values that are not served are refused."""
    config = weights.config
    heads = config.integer("num_attention_heads", 8)
    config.choice("num_key_value_heads", (heads,), heads)
    config.choice("attention_bias", (False,), False)
    config.choice("hidden_act", ("gelu",), "gelu")
    hidden = config.integer("hidden_size")
    rope = dict(config.raw("rope_parameters", {}))
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"{config.family}: rope_type is {kind!r}; supported: 'default'")
    theta = rope.get("rope_theta") or config.number("rope_theta", 10000.0)
    config.raw("rope_theta", None)
    return TransformerShape(
        hidden_size=hidden,
        layers=config.integer("num_hidden_layers", 8),
        heads=heads,
        head_dim=config.integer("head_dim", hidden // heads),
        intermediate_size=config.integer("intermediate_size", 2048),
        window=config.integer("sliding_window", 250),
        theta=float(theta),
        norm_eps=config.number("norm_eps", 1e-5),
    )


class _Block:
    """Weights of one layer, (inputs, outputs); layer scales are folded into the last products."""

    def __init__(
        self, weights: CodecWeights, name: str, shape: TransformerShape, products: Products
    ) -> None:
        hidden, width = shape.hidden_size, shape.heads * shape.head_dim

        def norm(part: str) -> tuple[torch.Tensor, torch.Tensor]:
            return (
                products.put(weights.tensor(f"{name}.{part}.weight", (hidden,))),
                products.put(weights.tensor(f"{name}.{part}.bias", (hidden,))),
            )

        def matrix(part: str, outputs: int, inputs: int) -> torch.Tensor:
            return weights.tensor(f"{name}.{part}.weight", (outputs, inputs))

        def scale(part: str) -> torch.Tensor:
            return weights.tensor(f"{name}.{part}.scale", (hidden,))[:, None]

        pairs = _pairs_beside(shape)
        parts = [matrix(f"self_attn.{part}_proj", width, hidden) for part in "qkv"]
        stacked = torch.cat([parts[0][pairs], parts[1][pairs], parts[2]])
        self.attention_norm = norm("input_layernorm")
        self.qkv = products.put(stacked.t())
        out = scale("self_attn_layer_scale") * matrix("self_attn.o_proj", hidden, width)
        self.out = products.put(out.t())
        self.mlp_norm = norm("post_attention_layernorm")
        self.up = products.put(matrix("mlp.fc1", shape.intermediate_size, hidden).t())
        down = scale("mlp_layer_scale") * matrix("mlp.fc2", hidden, shape.intermediate_size)
        self.down = products.put(down.t())


def _pairs_beside(shape: TransformerShape) -> torch.Tensor:
    """Rows of q and k in an order that puts the two halves of each rotated pair side by side.

    Scores do not change, and a rotation becomes a product of complex numbers.
    """
    half = shape.head_dim // 2
    head = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()
    return (torch.arange(shape.heads)[:, None] * shape.head_dim + head).flatten()


class RingStep(Protocol):
    """Where one step stands in the rings; the same for all layers."""

    def attend(self, qkv: torch.Tensor, ring: torch.Tensor) -> torch.Tensor:
        """qkv (B * T, 3 * heads * head_dim) to (B * T, heads * head_dim); ring is one layer's."""
        ...


@dataclass(frozen=True, slots=True)
class InPlaceStep:
    """A step of few positions on CUDA: one kernel that reads the ring where it lies.

    Attributes:
        before: (B) int64, positions seen.
        targets: (B) int64, the rows that are written, and read.
        turns: (B, T, head_dim / 2, 2) cosine and sine.
    """

    before: torch.Tensor
    targets: torch.Tensor
    turns: torch.Tensor
    window: int

    def attend(self, qkv: torch.Tensor, ring: torch.Tensor) -> torch.Tensor:
        """As :meth:`RingStep.attend`."""
        batch, steps = self.turns.shape[:2]
        qkv = qkv.view(batch, steps, 3, *ring.shape[-2:])
        attended = ring_attention(qkv, self.turns, ring, self.before, self.targets, self.window)
        return attended.flatten(0, 1)


@dataclass(frozen=True, slots=True)
class GatheredStep:
    """Any step, in plain torch.

    Attributes:
        rows: (B,) int64 or None, the rows that are read.
        targets: (B, 1) int64, the rows that are written.
        cells: (B, T) int64, the ring's cells of the new positions.
        rotation: (B, T, 3, 1, head_dim / 2) complex64, for q and k, and ones for v.
        mask: (B, 1, T, capacity), 0 where a query sees a cell and -inf elsewhere.
    """

    rows: torch.Tensor | None
    targets: torch.Tensor
    cells: torch.Tensor
    rotation: torch.Tensor
    mask: torch.Tensor

    def attend(self, qkv: torch.Tensor, ring: torch.Tensor) -> torch.Tensor:
        """As :meth:`RingStep.attend`."""
        batch, steps = self.cells.shape
        dtype = qkv.dtype
        qkv = qkv.view(batch, steps, 3, ring.shape[-2], -1, 2)
        turned = torch.view_as_complex(qkv.float()) * self.rotation
        qkv = torch.view_as_real(turned).flatten(-2).to(dtype)
        ring.index_put_((self.targets, self.cells), qkv[:, :, 1:])
        held = ring[:batch] if self.rows is None else ring.index_select(0, self.rows)
        attended = functional.scaled_dot_product_attention(
            qkv[:, :, 0].transpose(1, 2),
            held[:, :, 0].transpose(1, 2),
            held[:, :, 1].transpose(1, 2),
            attn_mask=self.mask,
        )
        return attended.transpose(1, 2).reshape(batch * steps, -1)


def _attends_in_place(device: torch.device, steps: int) -> bool:
    """Whether a step of so many positions takes :class:`InPlaceStep`."""
    if device.type != "cuda":
        return False
    if steps > MAX_STEPS:
        fall_back("ring_attention", f"more than {MAX_STEPS} positions")
        return False
    return True


class RingTransformer:
    """Pre-norm layers with rotary positions and layer scale, in a window of positions."""

    def __init__(
        self, weights: CodecWeights, name: str, shape: TransformerShape, products: Products
    ) -> None:
        self.shape = shape
        self.products = products
        self.blocks = [
            _Block(weights, f"{name}.layers.{index}", shape, products)
            for index in range(shape.layers)
        ]
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        self._frequencies = (1.0 / shape.theta**half).to(products.device)

    def state_tensors(self, slots: int, max_positions: int) -> dict[str, torch.Tensor]:
        """Rings that hold a window for each of a step's positions."""
        shape, device = self.shape, self.products.device
        cells = shape.window + max_positions - 1
        cells = -(-cells // ALIGNMENT) * ALIGNMENT
        size = (slots + 1, shape.layers, cells, 2, shape.heads, shape.head_dim)
        return {
            POSITION: torch.zeros(slots + 1, dtype=torch.int64, device=device),
            RING: torch.zeros(size, dtype=self.products.dtype, device=device),
        }

    def __call__(
        self, x: torch.Tensor, state: SlotState, rows: torch.Tensor | None, targets: torch.Tensor
    ) -> torch.Tensor:
        """x (B, T, hidden), overwritten, to the same shape; the slots at ``targets`` advance."""
        batch, steps, hidden = x.shape
        ring = state.tensors[RING]
        before = state.read(POSITION, rows, batch)
        step = self._locate(before, steps, ring.shape[2], rows, targets)
        x = x.reshape(batch * steps, hidden)
        for index, block in enumerate(self.blocks):
            self._attend(x, block, ring[:, index], step)
            self._feed_forward(x, block)
        state.write(POSITION, targets, before + steps)
        return x.view(batch, steps, hidden)

    def _locate(
        self,
        before: torch.Tensor,
        steps: int,
        capacity: int,
        rows: torch.Tensor | None,
        targets: torch.Tensor,
    ) -> RingStep:
        device = before.device
        positions = before[:, None] + torch.arange(steps, device=device)
        # Far positions times a frequency need more than the digits of fp32.
        angles = positions[..., None].double() * self._frequencies
        turned = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        if _attends_in_place(device, steps):
            turns = torch.view_as_real(turned)
            return InPlaceStep(before, targets, turns, self.shape.window)
        plain = torch.ones_like(turned)
        last = positions[:, -1:]
        cells = torch.arange(capacity, device=device)
        held = last - (last - cells) % capacity
        age = positions[:, :, None] - held[:, None, :]
        seen = (age >= 0) & (age < self.shape.window) & (held[:, None, :] >= 0)
        mask = torch.where(seen, 0.0, float("-inf")).to(self.products.dtype)
        return GatheredStep(
            rows,
            targets[:, None],
            positions % capacity,
            torch.stack([turned, turned, plain], dim=2)[:, :, :, None],
            mask[:, None],
        )

    def _attend(self, x: torch.Tensor, block: _Block, ring: torch.Tensor, step: RingStep) -> None:
        """Adds attention to x (B * T, hidden) in place."""
        shape = self.shape
        normed = functional.layer_norm(
            x, (shape.hidden_size,), *block.attention_norm, eps=shape.norm_eps
        )
        attended = step.attend(torch.mm(normed, block.qkv), ring)
        x.addmm_(attended, block.out)

    def _feed_forward(self, x: torch.Tensor, block: _Block) -> None:
        """Adds the feed-forward part to x (B * T, hidden) in place."""
        shape = self.shape
        normed = functional.layer_norm(x, (shape.hidden_size,), *block.mlp_norm, eps=shape.norm_eps)
        x.addmm_(functional.gelu(torch.mm(normed, block.up)), block.down)
