"""Short spectra of the RVQ-VAE: windowed Fourier frames as products, and back by overlap-add.

Frames are few samples long, so a matrix is faster than a transform. Everything is true fp32.
"""

from __future__ import annotations

import math

import torch

from antiphon_vocoder.codec.carry import Carry, CarryLayout
from antiphon_vocoder.codec.products import Products

LARGEST_MAGNITUDE = 100.0


def hann(length: int) -> torch.Tensor:
    """The periodic Hann window (length,) float64."""
    return torch.hann_window(length, periodic=True, dtype=torch.float64)


def _angles(size: int) -> torch.Tensor:
    """2 pi k n / size for bins k and samples n: (size / 2 + 1, size) float64."""
    bins = torch.arange(size // 2 + 1, dtype=torch.float64)
    return 2 * math.pi / size * bins[:, None] * torch.arange(size, dtype=torch.float64)


class Analysis:
    """Samples to spectra: real parts, then imaginary parts, of Hann-windowed frames.

    The clip is padded by ``pad`` zeros at both ends, so each hop of samples has one frame.

    Args:
        size: samples of a frame.
        hop: samples between frames, a divisor of ``size``.
    """

    def __init__(self, size: int, hop: int, products: Products, layout: CarryLayout) -> None:
        self.size = size
        self.hop = hop
        self.pad = (size - hop) // 2
        angles = _angles(size)
        basis = torch.cat([angles.cos(), -angles.sin()]) * hann(size)
        self._basis = products.put_exact(basis.t())
        self._products = products
        self._place = layout.place(1, self.pad)

    @property
    def lookahead(self) -> int:
        """Samples behind its hops that a step must see."""
        return self.size - self.hop - self.pad

    def __call__(self, pcm: torch.Tensor, carry: Carry) -> torch.Tensor:
        """pcm (B, N * hop + lookahead) fp32 to spectra (B, N, size + 2) fp32."""
        before = carry.old(self._place)[:, 0].float()
        extended = torch.cat([before, pcm], dim=1)
        fed = pcm.shape[1] - self.lookahead
        carry.keep(self._place, extended[:, fed : fed + self.pad].unsqueeze(1))
        with self._products.exact():
            return extended.unfold(1, self.size, self.hop) @ self._basis


class Synthesis:
    """Spectra to samples: log-like magnitudes, then phases, of each frame.

    A frame's samples are limited to the window's height, windowed, added where frames overlap,
    and divided by the sum of the squared windows of the frames that exist: a stream's edges
    count no frame that never was, so a stream equals its whole. Output trails by ``delay``.

    Args:
        size: samples of a frame.
        hop: samples between frames, a divisor of ``size``.
    """

    def __init__(self, size: int, hop: int, products: Products, layout: CarryLayout) -> None:
        if size % hop:
            raise ValueError(f"n_fft is {size}, expected a multiple of hop_length {hop}")
        self.size = size
        self.hop = hop
        self.overlap = size // hop
        pad = (size - hop) // 2
        self.delay = -(-pad // hop) * hop
        self._held = self.delay - pad
        window = hann(size)
        angles = _angles(size)
        twice = torch.full((size // 2 + 1, 1), 2.0, dtype=torch.float64)
        twice[0] = twice[-1] = 1.0
        # The imaginary parts of the first and last bin meet sin(0) and sin(pi n).
        basis = torch.cat([twice * angles.cos(), -twice * angles.sin()]) / size
        basis[size // 2 + 1] = basis[-1] = 0.0
        self._basis = products.put_exact(basis)
        self._window = products.put_exact(window)
        self._products = products
        # A frame is kept with its squared window, which is zero for a frame that never was.
        self._frames = layout.place(self.overlap - 1, 2 * size)
        self._samples = layout.place(1, self._held)

    def __call__(self, spectra: torch.Tensor, carry: Carry) -> torch.Tensor:
        """spectra (B, N, size + 2) to the next samples (B, N * hop), fp32."""
        height, phase = spectra.float().chunk(2, dim=2)
        # 100 exp(-softplus(ln 100 - m)), written as what it is.
        magnitude = LARGEST_MAGNITUDE * torch.sigmoid(height - math.log(LARGEST_MAGNITUDE))
        parts = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=2)
        with self._products.exact():
            frames = parts @ self._basis
        frames = torch.minimum(torch.maximum(frames, -self._window), self._window) * self._window
        squares = self._window.square().expand_as(frames)
        return self._add(torch.cat([frames, squares], dim=2), carry)

    def flush(self, batch: int, carry: Carry) -> torch.Tensor:
        """The last samples (batch, delay): what frames that never come would have pushed out."""
        count = self.delay // self.hop
        nothing = torch.zeros(batch, count, 2 * self.size, device=self._products.device)
        return self._add(nothing, carry)

    def _add(self, frames: torch.Tensor, carry: Carry) -> torch.Tensor:
        batch, count, _ = frames.shape
        kept = carry.old(self._frames).float()
        extended = torch.cat([kept, frames], dim=1)
        carry.keep(self._frames, extended[:, -self._frames.positions :])
        pieces = extended.view(batch, -1, 2, self.overlap, self.hop)
        total = pieces[:, self.overlap - 1 :, :, 0]
        for back in range(1, self.overlap):
            first = self.overlap - 1 - back
            total = total + pieces[:, first : first + count, :, back]
        sums, weights = total[:, :, 0], total[:, :, 1]
        samples = torch.where(weights > 0, sums / weights, 0.0).flatten(1)
        samples = torch.cat([carry.old(self._samples)[:, 0].float(), samples], dim=1)
        carry.keep(self._samples, samples[:, samples.shape[1] - self._held :].unsqueeze(1))
        return samples[:, : count * self.hop]
