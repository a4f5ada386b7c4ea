"""EnCodec at 24 kHz (Defossez et al. 2022): causal, 75 Hz, up to 32 codebooks.

Tensor names, shapes and config.json are transformers' ``EncodecModel``. Its layers mirror a
stream's first positions to the left of it, so the first step of a stream needs several frames.
"""

from __future__ import annotations

import math

import torch

from antiphon_vocoder.codec import seanet
from antiphon_vocoder.codec.carry import NAME, STARTED, Carry, CarryLayout
from antiphon_vocoder.codec.contract import CodecSpec
from antiphon_vocoder.codec.encodec_chunked import ChunkedEncodec
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.quantizer import ResidualQuantizer
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec.steps import depth_of, frames_of_codes, frames_of_pcm
from antiphon_vocoder.codec.streamed import StreamedCodec
from antiphon_vocoder.codec.weights import CodecWeights


class Encodec(StreamedCodec):
    """A loaded EnCodec; see :class:`antiphon_vocoder.codec.contract.Codec`."""

    def __init__(self, weights: CodecWeights, products: Products) -> None:
        config = weights.config
        config.choice("normalize", (False,), False)
        config.choice("chunk_length_s", (None,), None)
        config.choice("overlap", (None,), None)
        shape = seanet.read_shape(weights, lstm=True)
        if shape.audio_channels != 1:
            raise ValueError(f"encodec: audio_channels is {shape.audio_channels}; supported: 1")
        sample_rate = config.integer("sampling_rate", 24000)
        super().__init__(products)
        self._quantizer = read_quantizer(weights, shape, sample_rate, products)
        self._decoder_layout = CarryLayout()
        self._decoder = seanet.build_decoder(weights, shape, products, self._decoder_layout)
        self._encoder_layout = CarryLayout()
        self._encoder = seanet.build_encoder(weights, shape, products, self._encoder_layout)
        mirrored = shape.pad_mode == "reflect"
        self.spec = CodecSpec(
            name="encodec",
            sample_rate=sample_rate,
            frame_samples=shape.hop,
            codebook_count=self._quantizer.count,
            codebook_size=self._quantizer.size,
            first_hop_frames=max(shape.kernel_size, shape.last_kernel_size) if mirrored else 1,
        )

    def decoder_state(self, slots: int, max_frames: int) -> SlotState:
        """Contexts of the convolutions, and hidden and cell states."""
        return self._state(slots, max_frames, self._decoder_layout)

    def encoder_state(self, slots: int, max_frames: int) -> SlotState:
        """As :meth:`decoder_state`."""
        return self._state(slots, max_frames, self._encoder_layout)

    def _state(self, slots: int, max_frames: int, layout: CarryLayout) -> SlotState:
        tensors = {
            NAME: layout.tensor(slots, self.device, self._products.dtype),
            STARTED: torch.zeros(slots + 1, dtype=torch.int64, device=self.device),
        }
        return SlotState(slots, max_frames, tensors)

    def decode_step(
        self,
        codes: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
    ) -> torch.Tensor:
        """codes (B, k, T) to pcm (B, T * frame_samples)."""
        frames_of_codes(self.spec, codes, state)
        with self._products.active():
            carry = Carry(state, rows, exec_mask)
            x = self._quantizer.decode(codes).to(self._products.dtype)
            x = seanet.run(self._decoder, x, carry)
            carry.commit()
            return x.float().flatten(1)

    def encode_step(
        self,
        pcm: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
        codebooks: int | None = None,
    ) -> torch.Tensor:
        """pcm (B, T * frame_samples) to codes (B, codebooks, T)."""
        frames_of_pcm(self.spec, pcm, state)
        depth = depth_of(self.spec, codebooks)
        with self._products.active():
            carry = Carry(state, rows, exec_mask)
            x = seanet.run(self._encoder, pcm[:, :, None].to(self._products.dtype), carry)
            carry.commit()
            return self._quantizer.encode(x, depth)


def read_quantizer(
    weights: CodecWeights, shape: seanet.SeanetShape, sample_rate: int, products: Products
) -> ResidualQuantizer:
    """As many codebooks as the largest bandwidth (kbit/s) pays for."""
    config = weights.config
    size = config.integer("codebook_size", 1024)
    dim = config.integer("codebook_dim", shape.hidden_size)
    if dim != shape.hidden_size:
        raise ValueError(f"encodec: codebook_dim is {dim}, hidden_size {shape.hidden_size}")
    frame_rate = math.ceil(sample_rate / shape.hop)
    bits = math.ceil(math.log2(size))
    bandwidths = config.raw("target_bandwidths", [1.5, 3.0, 6.0, 12.0, 24.0])
    count = int(1000 * bandwidths[-1] // (frame_rate * bits))
    books = []
    for index in range(count):
        name = f"quantizer.layers.{index}.codebook"
        books.append(weights.tensor(f"{name}.embed", (size, dim)))
        # Of the training's moving averages.
        weights.tensor(f"{name}.inited", (1,))
        weights.tensor(f"{name}.cluster_size", (size,))
        weights.tensor(f"{name}.embed_avg", (size, dim))
    return ResidualQuantizer(books, products)


def load(weights: CodecWeights, products: Products) -> Encodec | ChunkedEncodec:
    """Reads an EnCodec, causal or in chunks; the registry's entry."""
    config = weights.config
    norms = ("weight_norm", "time_group_norm")
    if config.choice("norm_type", norms, "weight_norm") == "weight_norm":
        return Encodec(weights, products)
    shape = seanet.read_shape(weights, lstm=True, causal=False)
    sample_rate = config.integer("sampling_rate", 48000)
    quantizer = read_quantizer(weights, shape, sample_rate, products)
    return ChunkedEncodec(weights, shape, quantizer, sample_rate, products)
