"""What codecs share whose whole clips are steps of a state of their own."""

from __future__ import annotations

import torch

from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec.placed import PlacedCodec
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec.whole import decode_whole, encode_whole


class StreamedCodec(PlacedCodec):
    """Base of the codecs that stream both ways; see :class:`Codec`, which subclasses complete.

    Args:
        products: where and how the layers are computed.
    """

    def decode(self: Codec, codes: torch.Tensor) -> torch.Tensor:
        """codes (B, k, frames) to pcm (B, samples), whole."""
        return decode_whole(self, codes)

    def encode(self: Codec, pcm: torch.Tensor, codebooks: int | None = None) -> torch.Tensor:
        """pcm (B, samples) to codes (B, codebooks, frames), whole."""
        return encode_whole(self, pcm, codebooks)

    def decode_flush(
        self, state: SlotState, rows: torch.Tensor | None, exec_mask: torch.Tensor
    ) -> torch.Tensor:
        """Nothing, unless a subclass's samples trail."""
        return torch.zeros(exec_mask.shape[0], 0, device=self.device)
