"""Convolutions that see as far ahead as back, as delay lines over channels-last activations.

Such a layer cannot answer for a position before its right context is there. Here its output
trails instead: every layer says how far its inputs trail (:class:`Timing`), keeps the earlier
inputs that it needs, and a shortcut beside it is delayed alike. Nothing is computed twice, and a
stream has the whole receptive field, so it equals the whole clip.

A clip ends in zeros at *every* layer, not only at the input, and a bias makes something of
nothing; so each layer blanks what it is given for positions before or behind the stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from antiphon_vocoder.codec.carry import Carry, CarryLayout, Place
from antiphon_vocoder.codec.products import Products


@dataclass(frozen=True, slots=True)
class Timing:
    """How a layer's positions stand to the stream's frames.

    Attributes:
        rate: positions of a frame.
        delay: positions by which they trail.
        missing: positions that a clip of whole frames lacks at its end: a transposed
            convolution of odd stride gives one less than its stride asks for.
    """

    rate: int
    delay: int = 0
    missing: int = 0


class DelayStep:
    """One step of rows whose layers trail.

    Args:
        carry: contexts of the rows.
        begun: (B,) int64, frames of each row's stream before this step.
        frames: T, by which the streams advance; layers may be given more, which come again.
        total: (B,) int64, frames of streams whose end is known; None if none is.
    """

    def __init__(
        self, carry: Carry, begun: torch.Tensor, frames: int, total: torch.Tensor | None = None
    ) -> None:
        self._carry = carry
        self._begun = begun[:, None]
        self._frames = frames
        self._total = None if total is None else total[:, None]

    def blank_outside(self, x: torch.Tensor, timing: Timing) -> torch.Tensor:
        """x (B, N, channels) with zeros at positions that the stream does not have."""
        offsets = torch.arange(x.shape[1], device=x.device) - timing.delay
        positions = self._begun * timing.rate + offsets
        exists = positions >= 0
        if self._total is not None:
            exists &= positions < self._total * timing.rate - timing.missing
        return torch.where(exists[:, :, None], x, 0)

    def extend(self, place: Place, x: torch.Tensor, rate: int) -> torch.Tensor:
        """x (B, N, channels) behind its context, of which the next step's is kept.

        Args:
            place: the layer's.
            x: N >= T * rate positions.
            rate: positions of a frame.
        """
        extended = torch.cat([self._carry.old(place).to(x.dtype), x], dim=1)
        first = self._frames * rate
        self._carry.keep(place, extended[:, first : first + place.positions])
        return extended


class Snake:
    """x + sin(a x)^2 / a with one a for each channel (Ziyin et al. 2020)."""

    def __init__(self, alpha: torch.Tensor, products: Products) -> None:
        """alpha (1, channels, 1)."""
        flat = alpha.flatten().float()
        self._alpha = products.put(flat)
        self._inverse = products.put(1 / (flat + 1e-9))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x (..., channels) to the same shape."""
        return torch.addcmul(x, torch.sin(x * self._alpha).square_(), self._inverse)


class _Taps:
    """y[t] = bias + sum over i of x[t + i * dilation] W[i]: one product, zeros not multiplied."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor, products: Products, dilation: int = 1
    ) -> None:
        """weight (taps, inputs, outputs), oldest position first."""
        self.taps, self._inputs, self._outputs = weight.shape
        self._dilation = dilation
        self._weight = products.put(weight.flatten(0, 1))
        self._bias = products.put(bias)

    def __call__(self, extended: torch.Tensor) -> torch.Tensor:
        """extended (B, (taps - 1) * dilation + N, inputs), contiguous, to (B, N, outputs)."""
        batch, length, inputs = extended.shape
        steps = length - (self.taps - 1) * self._dilation
        windows = extended.as_strided(
            (batch, steps, self.taps, inputs),
            (length * inputs, inputs, self._dilation * inputs, 1),
        )
        flat = windows.reshape(batch * steps, self.taps * inputs)
        return torch.addmm(self._bias, flat, self._weight).view(batch, steps, self._outputs)


class CentredConv:
    """Conv1d of stride 1 whose padding, zeros, is half on either side.

    Args:
        weight: (outputs, inputs, kernel) as torch stores it, the kernel odd.
        snake: applied to the inputs first.
        timing: of its inputs.

    Attributes:
        timing: of its outputs.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor,
        products: Products,
        layout: CarryLayout,
        timing: Timing,
        *,
        dilation: int = 1,
        snake: Snake | None = None,
    ) -> None:
        _, inputs, kernel = weight.shape
        self._given = timing
        self._snake = snake
        self._taps = _Taps(weight.permute(2, 1, 0), bias, products, dilation)
        self._place = layout.place((kernel - 1) * dilation, inputs)
        self.half = (kernel - 1) * dilation // 2
        self.timing = replace(timing, delay=timing.delay + self.half)

    def __call__(self, x: torch.Tensor, step: DelayStep) -> torch.Tensor:
        """x (B, N, inputs) to (B, N, outputs)."""
        return self.product(self.extended(x, step))

    def extended(self, x: torch.Tensor, step: DelayStep) -> torch.Tensor:
        """x behind its context (B, 2 * half + N, inputs)."""
        return step.extend(self._place, step.blank_outside(x, self._given), self._given.rate)

    def product(self, extended: torch.Tensor) -> torch.Tensor:
        """What :meth:`extended` gave to (B, N, outputs)."""
        return self._taps(extended if self._snake is None else self._snake(extended))


class CentredResidual:
    """x + conv1x1(snake(conv(snake(x)))), x as late as the convolution is.

    Args:
        first: the dilated convolution with its snake.
        second: (channels, channels, 1) and its bias.
        snake: before the second.
    """

    def __init__(
        self,
        first: CentredConv,
        second: tuple[torch.Tensor, torch.Tensor],
        snake: Snake,
        products: Products,
    ) -> None:
        self._first = first
        self._snake = snake
        self._second = _Taps(second[0].permute(2, 1, 0), second[1], products)
        self.timing = first.timing

    def __call__(self, x: torch.Tensor, step: DelayStep) -> torch.Tensor:
        """x (B, N, channels) to the same shape."""
        extended = self._first.extended(x, step)
        half = self._first.half
        inner = self._second(self._snake(self._first.product(extended)))
        return inner.add_(extended[:, half : half + x.shape[1]])


class CentredDownsample:
    """Snake and Conv1d with a kernel of two strides, padded by half a stride, rounded up.

    Its outputs trail by whole positions, so some of the newest inputs may wait for the next.

    Args:
        weight: (outputs, inputs, 2 * stride) as torch stores it.
        timing: of its inputs; their rate is a multiple of the stride.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor,
        products: Products,
        layout: CarryLayout,
        timing: Timing,
        *,
        stride: int,
        snake: Snake,
    ) -> None:
        outputs, inputs, kernel = weight.shape
        ahead = kernel - stride - -(-stride // 2) + timing.delay
        delay = -(-ahead // stride)
        unused = delay * stride - ahead
        taps = -(-(kernel + unused) // stride)
        weight = functional.pad(weight, (taps * stride - kernel - unused, unused))
        grouped = weight.permute(2, 1, 0).reshape(taps, stride * inputs, outputs)
        self._given = timing
        self._stride = stride
        self._snake = snake
        self._taps = _Taps(grouped, bias, products)
        self._place = layout.place(taps - 1, stride * inputs)
        self.timing = Timing(timing.rate // stride, delay)

    def __call__(self, x: torch.Tensor, step: DelayStep) -> torch.Tensor:
        """x (B, N * stride, inputs) to (B, N, outputs)."""
        x = self._snake(step.blank_outside(x, self._given))
        grouped = x.reshape(x.shape[0], -1, self._stride * x.shape[2])
        return self._taps(step.extend(self._place, grouped, self.timing.rate))


class CentredUpsample:
    """Snake and ConvTranspose1d with a kernel of two strides, cropped by half a stride each side.

    Args:
        weight: (inputs, outputs, 2 * stride) as torch stores it.
        timing: of its inputs.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor,
        products: Products,
        layout: CarryLayout,
        timing: Timing,
        *,
        stride: int,
        snake: Snake,
    ) -> None:
        inputs, outputs, _ = weight.shape
        # (inputs, outputs, two taps, stride): the newest input meets the kernel's first half.
        split = weight.view(inputs, outputs, 2, stride).flip(2)
        grouped = split.permute(2, 0, 3, 1).reshape(2, inputs, stride * outputs)
        self._given = timing
        self._stride = stride
        self._snake = snake
        self._taps = _Taps(grouped, bias.repeat(stride), products)
        self._place = layout.place(1, inputs)
        crop = -(-stride // 2)
        self.timing = Timing(
            timing.rate * stride,
            timing.delay * stride + crop,
            timing.missing * stride + 2 * crop - stride,
        )

    def __call__(self, x: torch.Tensor, step: DelayStep) -> torch.Tensor:
        """x (B, N, inputs) to (B, N * stride, outputs)."""
        x = step.blank_outside(x, self._given)
        out = self._taps(self._snake(step.extend(self._place, x, self._given.rate)))
        return out.view(x.shape[0], x.shape[1] * self._stride, -1)
