"""How matrix products are computed: dtype of weights and activations, and TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from antiphon_kernels.causal_taps import split

from antiphon_vocoder.codec.contract import Precision

DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16x3": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


class Products:
    """The device and precision of a codec's layers.

    Attributes:
        device: where weights, states and inputs live.
        precision: of the layers' products.
        placed_bytes: bytes of the weights that were put on the device so far.
    """

    def __init__(self, device: torch.device, precision: Precision) -> None:
        self.device = device
        self.precision: Precision = precision
        self.placed_bytes = 0

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and contexts."""
        return DTYPES[self.precision]

    def kernel_weights(self, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """A placed weight as the convolution kernel takes it; empty where that is not used."""
        if self.device.type != "cuda" or self.precision in ("fp32", "tf32"):
            return ()
        if self.precision != "bf16x3":
            return (weight,)
        return tuple(self._placed(part) for part in split(weight))

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A weight where and as the products want it."""
        return self._placed(tensor.to(self.device, self.dtype))

    def put_exact(self, tensor: torch.Tensor) -> torch.Tensor:
        """A weight that stays fp32 in every precision."""
        return self._placed(tensor.to(self.device, torch.float32))

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        self.placed_bytes += tensor.nbytes
        return tensor

    @contextmanager
    def active(self) -> Iterator[None]:
        """Runs layers: no gradients, and TF32 exactly where it was asked for.

        The switch is the process's; what runs in here must be the only thread that multiplies.
        """
        matmul = torch.backends.cuda.matmul
        before = matmul.allow_tf32
        matmul.allow_tf32 = self.precision == "tf32"
        try:
            with torch.no_grad():
                yield
        finally:
            matmul.allow_tf32 = before

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Within :meth:`active`: true fp32 products, for quantisers and spectra."""
        matmul = torch.backends.cuda.matmul
        before = matmul.allow_tf32
        matmul.allow_tf32 = False
        try:
            yield
        finally:
            matmul.allow_tf32 = before
