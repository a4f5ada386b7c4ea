"""What a codec offers to the process that runs it: whole clips, and hops of many slots at once.

A *frame* is one column of codes, ``frame_samples`` samples. A *step* runs T frames of B rows;
which slot a row belongs to is an index on the device, so a recorded graph serves any slots. A
row whose ``exec_mask`` is False advances nothing: what it would write goes to the null row.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, Protocol

import torch

from antiphon_vocoder.codec.state import SlotState

Precision = Literal["fp32", "tf32", "bf16x3", "fp16", "bf16"]
"""How products are computed. The quantiser, offsets and spectra are fp32 in all of them.

bf16x3 is fp32 whose large products are three of bfloat16 halves on CUDA: 16 bits of precision.
"""

ABSENT = -1
"""A code that adds nothing: rows with fewer codebooks than the codec has are padded with it."""


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """Facts of a loaded codec.

    Attributes:
        name: the checkpoint's model_type.
        sample_rate: Hz.
        channels: of the PCM; where it is 1 the PCM tensors have no channel axis.
        frame_samples: samples of one frame.
        codebook_count: codebooks of a frame; a stream may use the first k of them.
        codebook_size: codes are 0 .. codebook_size - 1.
        control_codes: further ids that are legal input and decode as silence.
        decode_delay_samples: how far the samples of ``decode_step`` trail: a stream's first so
            many are dropped, and ``decode_flush`` gives the last ones.
        encode_lookahead_samples: samples behind its frames that ``encode_step`` must see.
        encode_lookahead_fill: stands for those of them that are past a stream's end; NaN where
            the encoder treats an end otherwise than silence.
        first_hop_frames: frames that a stream's first step needs in either direction; it may be
            shorter only if nothing follows.
        streams_decode: whether there is a decoder state with ``decode_step``.
        streams_encode: whether there is an encoder state with ``encode_step``.
    """

    name: str
    sample_rate: int
    frame_samples: int
    codebook_count: int
    codebook_size: int
    channels: int = 1
    control_codes: frozenset[int] = frozenset()
    decode_delay_samples: int = 0
    encode_lookahead_samples: int = 0
    encode_lookahead_fill: float = 0.0
    first_hop_frames: int = 1
    streams_decode: bool = True
    streams_encode: bool = True

    @property
    def frame_rate(self) -> Fraction:
        """Frames per second, exact."""
        return Fraction(self.sample_rate, self.frame_samples)

    def accepts(self, code: int) -> bool:
        """Whether a stream may send this code. ``ABSENT`` is padding of ours, not of a stream."""
        return 0 <= code < self.codebook_size or code in self.control_codes


class Codec(Protocol):
    """A loaded codec on one device. Codes are checked by the caller: see ``CodecSpec.accepts``.

    No method synchronises with the host. The step methods run the same device work whenever
    their shapes are the same, so they can be recorded. ``rows`` (B,) int64 names each row's slot;
    ``None`` means row i is slot i. Rows that are True in ``exec_mask`` (B,) bool are distinct;
    others may repeat, and may be ``state.null_row``. Output of masked rows is undefined.
    """

    @property
    def spec(self) -> CodecSpec:
        """Facts of this codec."""
        ...

    @property
    def device(self) -> torch.device:
        """Where weights, states and inputs live."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        ...

    def encode(self, pcm: torch.Tensor, codebooks: int | None = None) -> torch.Tensor:
        """pcm (B, samples) fp32 to codes (B, codebooks, frames) int64, whole clips.

        The tail is padded with zeros to a frame.
        """
        ...

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """codes (B, k, frames) int64 with k <= codebook_count to pcm (B, samples) fp32, whole."""
        ...

    def decoder_state(self, slots: int, max_frames: int) -> SlotState:
        """State of so many streams that decode at most ``max_frames`` a step, all reset."""
        ...

    def encoder_state(self, slots: int, max_frames: int) -> SlotState:
        """State of so many streams that encode at most ``max_frames`` a step, all reset."""
        ...

    def decode_step(
        self,
        codes: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
    ) -> torch.Tensor:
        """codes (B, k, T) int64 to pcm (B, T * frame_samples) fp32.

        Graphs are best recorded with k = codebook_count, rows of fewer padded with ``ABSENT``.
        """
        ...

    def decode_flush(
        self, state: SlotState, rows: torch.Tensor | None, exec_mask: torch.Tensor
    ) -> torch.Tensor:
        """The last samples (B, decode_delay_samples) of streams that end.

        Rows that are run must be reset before they are used again.
        """
        ...

    def encode_step(
        self,
        pcm: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
        codebooks: int | None = None,
    ) -> torch.Tensor:
        """pcm (B, T * frame_samples + encode_lookahead_samples) fp32 to codes (B, codebooks, T).

        The samples of the lookahead come again as the first of the next step; past a stream's
        end they are ``encode_lookahead_fill``.
        """
        ...
