"""Causal convolutions as matrix products over channels-last activations (B, T, C).

There is one primitive: ``taps`` consecutive positions times one matrix. A convolution of stride
s is that over groups of s positions side by side; a transposed one gives s positions side by
side, and needs earlier inputs, not overlapping outputs. So everything that a stream must keep
is a layer's last ``taps - 1`` input positions, and a bias is added once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from antiphon_kernels.causal_taps import causal_taps, fuses
from torch.nn import functional

from antiphon_vocoder.codec.carry import Carry, CarryLayout
from antiphon_vocoder.codec.products import Products

Beginning = Callable[[torch.Tensor], torch.Tensor]


class TapProduct:
    """y[t] = bias + sum over i of x[t - taps + 1 + i] W[i].

    Attributes:
        weight: (taps * inputs, outputs), oldest position first.
        bias: (outputs) or None.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        products: Products,
        layout: CarryLayout,
    ) -> None:
        taps, inputs, outputs = weight.shape
        self.taps = taps
        self.outputs = outputs
        self.weight = products.put(weight.reshape(taps * inputs, outputs))
        self.bias = None if bias is None else products.put(bias)
        self._kernel_weights = products.kernel_weights(self.weight)
        self.place = layout.place(taps - 1, inputs)

    def __call__(
        self,
        x: torch.Tensor,
        carry: Carry,
        beginning: Beginning | None = None,
        *,
        elu: bool = False,
        added: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x (B, T, inputs), or ELU of it, to (B, T, outputs); ``added`` shaped like the result."""
        batch, steps, inputs = x.shape
        fused = self._kernel_weights and fuses(batch * steps, inputs, self.outputs)
        if fused and beginning is None:
            out, context = causal_taps(
                x, carry.flat(self.place), self._kernel_weights, self.bias, added, elu=elu
            )
            carry.keep(self.place, context)
            return out
        extended = carry.extend(self.place, functional.elu(x) if elu else x, beginning)
        out = self.product(extended)
        return out if added is None else out.add_(added)

    def product(self, extended: torch.Tensor) -> torch.Tensor:
        """extended (B, taps - 1 + T, inputs), contiguous, to (B, T, outputs)."""
        batch, length, inputs = extended.shape
        steps = length - self.taps + 1
        windows = extended
        if self.taps > 1:
            # Each window is a run of memory; windows overlap, so the product copies them.
            windows = extended.as_strided(
                (batch, steps, self.taps * inputs), (length * inputs, inputs, 1)
            )
        flat = windows.reshape(batch * steps, self.taps * inputs)
        if self.bias is None:
            out = torch.mm(flat, self.weight)
        else:
            out = torch.addmm(self.bias, flat, self.weight)
        return out.view(batch, steps, self.outputs)


class CausalConv:
    """Conv1d with all its padding, kernel minus stride, on the left.

    Args:
        weight: (outputs, inputs, kernel) as torch stores it; one group.
        bias: (outputs) or None.
        stride: positions a step; inputs come in multiples of it.
        dilation: of the kernel.
        elu: apply ELU to the inputs first.
        pad: what stands before a stream: zeros, its first positions mirrored about the first,
            or the first repeated.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        products: Products,
        layout: CarryLayout,
        *,
        stride: int = 1,
        dilation: int = 1,
        elu: bool = False,
        pad: str = "constant",
    ) -> None:
        self.stride = stride
        self.elu = elu
        weight = _dilated(weight, dilation)
        outputs, inputs, kernel = weight.shape
        self.padding = kernel - stride
        taps = -(-kernel // stride)
        # A kernel that is no multiple of the stride is one with zeros before it.
        weight = functional.pad(weight, (taps * stride - kernel, 0))
        grouped = weight.permute(2, 1, 0).reshape(taps, stride * inputs, outputs)
        self.taps = TapProduct(grouped, bias, products, layout)
        self._beginning: Beginning | None = None
        if pad != "constant" and taps > 1:
            self._beginning = {"reflect": self._mirrored, "replicate": self._repeated}[pad]

    def __call__(
        self, x: torch.Tensor, carry: Carry, added: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x (B, T * stride, inputs) to (B, T, outputs); ``added`` shaped like the result."""
        batch, length, inputs = x.shape
        x = x.reshape(batch, length // self.stride, self.stride * inputs)
        return self.taps(x, carry, self._beginning, elu=self.elu, added=added)

    def _mirrored(self, x: torch.Tensor) -> torch.Tensor:
        """The context of a stream that begins with x (B, T, stride * inputs), grouped alike.

        Inputs of no more than ``padding`` positions are extended by zeros for it.
        """
        plain = x.unflatten(2, (self.stride, -1)).flatten(1, 2)
        missing = self.padding + 1 - plain.shape[1]
        if missing > 0:
            plain = functional.pad(plain, (0, 0, 0, missing))
        return self._grouped(plain[:, 1 : self.padding + 1].flip(1))

    def _repeated(self, x: torch.Tensor) -> torch.Tensor:
        """As :meth:`_mirrored`, with the first position in every place."""
        first = x.unflatten(2, (self.stride, -1))[:, 0, :1]
        return self._grouped(first.expand(-1, self.padding, -1))

    def _grouped(self, context: torch.Tensor) -> torch.Tensor:
        place = self.taps.place
        before = place.positions * self.stride - self.padding
        return functional.pad(context, (0, 0, before, 0)).reshape(
            context.shape[0], place.positions, place.channels
        )


class CausalTransposedConv:
    """ConvTranspose1d that trims its surplus, kernel minus stride, on the right.

    Args:
        weight: (inputs, outputs, kernel) as torch stores it; one group.
        bias: (outputs) or None.
        stride: output positions of one input position.
        elu: apply ELU to the inputs first.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        products: Products,
        layout: CarryLayout,
        *,
        stride: int,
        elu: bool = False,
    ) -> None:
        self.elu = elu
        self.stride = stride
        inputs, outputs, kernel = weight.shape
        taps = -(-kernel // stride)
        weight = functional.pad(weight, (0, taps * stride - kernel))
        # (inputs, outputs, taps, stride): the newest input meets the kernel's first positions.
        split = weight.view(inputs, outputs, taps, stride).flip(2)
        grouped = split.permute(2, 0, 3, 1).reshape(taps, inputs, stride * outputs)
        spread = None if bias is None else bias.repeat(stride)
        self.taps = TapProduct(grouped, spread, products, layout)

    def __call__(self, x: torch.Tensor, carry: Carry) -> torch.Tensor:
        """x (B, T, inputs) to (B, T * stride, outputs)."""
        out = self.taps(x, carry, elu=self.elu)
        return out.view(x.shape[0], x.shape[1] * self.stride, -1)


class DepthwiseUpsample:
    """ConvTranspose1d with one group a channel, trimmed on the right; no bias.

    Args:
        weight: (channels, 1, kernel) with a kernel of two strides.
    """

    def __init__(
        self, weight: torch.Tensor, products: Products, layout: CarryLayout, *, stride: int
    ) -> None:
        channels, _, kernel = weight.shape
        if kernel != 2 * stride:
            raise ValueError(f"kernel is {kernel}, expected two strides of {stride}")
        self.stride = stride
        halves = weight.view(channels, 2, stride).permute(1, 2, 0)
        self.newest, self.previous = products.put(halves[0]), products.put(halves[1])
        self.place = layout.place(1, channels)

    def __call__(self, x: torch.Tensor, carry: Carry) -> torch.Tensor:
        """x (B, T, channels) to (B, T * stride, channels)."""
        extended = carry.extend(self.place, x)
        previous = extended[:, :-1, None] * self.previous
        return torch.addcmul(previous, x[:, :, None], self.newest).flatten(1, 2)


class ResidualUnit:
    """x + conv(ELU(conv(ELU(x)))), the unit between resamplings of a SEANet.

    Args:
        first, second: its convolutions, which apply their ELU themselves.
        shortcut: a convolution of one position beside them; None adds x itself.
    """

    def __init__(
        self, first: CausalConv, second: CausalConv, shortcut: CausalConv | None = None
    ) -> None:
        self.first = first
        self.second = second
        self.shortcut = shortcut

    def __call__(self, x: torch.Tensor, carry: Carry) -> torch.Tensor:
        """x (B, T, channels) to the same shape."""
        inner = self.first(x, carry)
        return self.second(inner, carry, x if self.shortcut is None else self.shortcut(x, carry))


def _dilated(weight: torch.Tensor, dilation: int) -> torch.Tensor:
    """A kernel with zeros between its positions."""
    if dilation == 1:
        return weight
    outputs, inputs, kernel = weight.shape
    spread = weight.new_zeros(outputs, inputs, (kernel - 1) * dilation + 1)
    spread[..., ::dilation] = weight
    return spread
