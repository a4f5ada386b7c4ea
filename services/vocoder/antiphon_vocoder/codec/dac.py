"""DAC at 16, 24 and 44.1 kHz (Kumar et al. 2023): convolutions with Snake units, not causal.

Tensor names, shapes and config.json are transformers' ``DacModel``. As a stream the decoder's
output trails by its right context, and the encoder looks as far ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from antiphon_vocoder.codec.carry import NAME, Carry, CarryLayout
from antiphon_vocoder.codec.centred import (
    CentredConv,
    CentredDownsample,
    CentredResidual,
    CentredUpsample,
    DelayStep,
    Snake,
    Timing,
)
from antiphon_vocoder.codec.contract import CodecSpec
from antiphon_vocoder.codec.cosine import CosineCodebook, CosineQuantizer
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec.steps import depth_of, frames_of_codes, frames_of_pcm
from antiphon_vocoder.codec.streamed import StreamedCodec
from antiphon_vocoder.codec.weights import CodecWeights

DILATIONS = (1, 3, 9)
KERNEL = 7
LATENT_KERNEL = 3
BEGUN = "begun"
"""Name of the count (slots + 1) int64 of frames that a slot's stream has run."""

Layer = CentredConv | CentredResidual | CentredDownsample | CentredUpsample


@dataclass(frozen=True, slots=True)
class _Shape:
    ratios: tuple[int, ...]
    encoder_size: int
    decoder_size: int
    hidden_size: int

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return math.prod(self.ratios)


class _Stack:
    """Builds one side's layers in their order, each knowing how late the one before it is."""

    def __init__(
        self,
        weights: CodecWeights,
        products: Products,
        layout: CarryLayout,
        timing: Timing,
    ) -> None:
        self._weights = weights
        self._products = products
        self._layout = layout
        self.timing = timing
        self.layers: list[Layer] = []

    def conv(
        self, name: str, inputs: int, outputs: int, kernel: int, snake: str | None = None
    ) -> None:
        """A convolution of stride 1; ``snake`` names the activation before it."""
        self._add(
            CentredConv(
                *self._pair(name, (outputs, inputs, kernel), outputs),
                self._products,
                self._layout,
                self.timing,
                snake=None if snake is None else self._snake(snake, inputs),
            )
        )

    def residuals(self, name: str, channels: int) -> None:
        """The three units of one rate."""
        for number, dilation in enumerate(DILATIONS, 1):
            unit = f"{name}.res_unit{number}"
            first = CentredConv(
                *self._pair(f"{unit}.conv1", (channels, channels, KERNEL), channels),
                self._products,
                self._layout,
                self.timing,
                dilation=dilation,
                snake=self._snake(f"{unit}.snake1", channels),
            )
            second = self._pair(f"{unit}.conv2", (channels, channels, 1), channels)
            snake = self._snake(f"{unit}.snake2", channels)
            self._add(CentredResidual(first, second, snake, self._products))

    def downsample(self, name: str, inputs: int, outputs: int, stride: int) -> None:
        """The end of an encoder's block."""
        self._add(
            CentredDownsample(
                *self._pair(f"{name}.conv1", (outputs, inputs, 2 * stride), outputs),
                self._products,
                self._layout,
                self.timing,
                stride=stride,
                snake=self._snake(f"{name}.snake1", inputs),
            )
        )

    def upsample(self, name: str, inputs: int, outputs: int, stride: int) -> None:
        """The begin of a decoder's block."""
        self._add(
            CentredUpsample(
                *self._pair(f"{name}.conv_t1", (inputs, outputs, 2 * stride), outputs),
                self._products,
                self._layout,
                self.timing,
                stride=stride,
                snake=self._snake(f"{name}.snake1", inputs),
            )
        )

    def _add(self, layer: Layer) -> None:
        self.layers.append(layer)
        self.timing = layer.timing

    def _pair(
        self, name: str, shape: tuple[int, ...], outputs: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._weights.normed(name, shape), self._weights.tensor(f"{name}.bias", (outputs,))

    def _snake(self, name: str, channels: int) -> Snake:
        return Snake(self._weights.tensor(f"{name}.alpha", (1, channels, 1)), self._products)


class Dac(StreamedCodec):
    """A loaded DAC; see :class:`antiphon_vocoder.codec.contract.Codec`.

    Where a ratio is odd, a clip of whole frames lacks a few samples at its end (24 kHz: 8);
    they are zeros.
    """

    def __init__(self, weights: CodecWeights, products: Products) -> None:
        shape = _read_shape(weights)
        super().__init__(products)
        self._hidden_size = shape.hidden_size
        self._quantizer = _read_quantizer(weights, shape, products)
        self._decoder_layout = CarryLayout()
        decoder = _build_decoder(weights, shape, products, self._decoder_layout)
        self._decoder, self._decoded = decoder.layers, decoder.timing
        self._encoder_layout = CarryLayout()
        encoder = _build_encoder(weights, shape, products, self._encoder_layout)
        self._encoder, self._ahead = encoder.layers, encoder.timing.delay
        self.spec = CodecSpec(
            name="dac",
            sample_rate=weights.config.integer("sampling_rate", 16000),
            frame_samples=shape.hop,
            codebook_count=self._quantizer.count,
            codebook_size=self._quantizer.size,
            decode_delay_samples=self._decoded.delay,
            encode_lookahead_samples=self._ahead * shape.hop,
            encode_lookahead_fill=math.nan,
        )

    def decoder_state(self, slots: int, max_frames: int) -> SlotState:
        """Contexts of the convolutions, and how many frames were run."""
        return self._state(slots, max_frames, self._decoder_layout)

    def encoder_state(self, slots: int, max_frames: int) -> SlotState:
        """As :meth:`decoder_state`."""
        return self._state(slots, max_frames, self._encoder_layout)

    def _state(self, slots: int, max_frames: int, layout: CarryLayout) -> SlotState:
        tensors = {
            NAME: layout.tensor(slots, self.device, self._products.dtype),
            BEGUN: torch.zeros(slots + 1, dtype=torch.int64, device=self.device),
        }
        return SlotState(slots, max_frames, tensors)

    def decode_step(
        self,
        codes: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
    ) -> torch.Tensor:
        """codes (B, k, T) to pcm (B, T * frame_samples), which trails."""
        frames = frames_of_codes(self.spec, codes, state)
        with self._products.active():
            carry = Carry(state, rows, exec_mask)
            begun = state.read(BEGUN, rows, carry.batch)
            pcm = self._synthesise(self._quantizer.decode(codes), DelayStep(carry, begun, frames))
            carry.commit()
            state.write(BEGUN, carry.targets, begun + frames)
            return pcm

    def decode_flush(
        self, state: SlotState, rows: torch.Tensor | None, exec_mask: torch.Tensor
    ) -> torch.Tensor:
        """The samples (B, decode_delay_samples) that still trail."""
        delay = self.spec.decode_delay_samples
        frames = -(-delay // self.spec.frame_samples)
        with self._products.active():
            carry = Carry(state, rows, exec_mask)
            begun = state.read(BEGUN, rows, carry.batch)
            nothing = torch.zeros(carry.batch, frames, self._hidden_size, device=self.device)
            step = DelayStep(carry, begun, frames, total=begun)
            return self._synthesise(nothing, step)[:, :delay]

    def _synthesise(self, latents: torch.Tensor, step: DelayStep) -> torch.Tensor:
        x = _run(self._decoder, latents.to(self._products.dtype), step)
        return step.blank_outside(torch.tanh(x.float()), self._decoded).flatten(1)

    def encode_step(
        self,
        pcm: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
        codebooks: int | None = None,
    ) -> torch.Tensor:
        """pcm (B, T * frame_samples + encode_lookahead_samples) to codes (B, codebooks, T)."""
        frames = frames_of_pcm(self.spec, pcm, state)
        depth = depth_of(self.spec, codebooks)
        hop = self.spec.frame_samples
        with self._products.active():
            carry = Carry(state, rows, exec_mask)
            begun = state.read(BEGUN, rows, carry.batch)
            follow = (~pcm[:, frames * hop :: hop].isnan()).sum(dim=1)
            step = DelayStep(carry, begun, frames, total=begun + frames + follow)
            x = _run(self._encoder, pcm[:, :, None].to(self._products.dtype), step)
            carry.commit()
            state.write(BEGUN, carry.targets, begun + frames)
            return self._quantizer.encode(x[:, self._ahead :], depth)


def _run(layers: Sequence[Layer], x: torch.Tensor, step: DelayStep) -> torch.Tensor:
    for layer in layers:
        x = layer(x, step)
    return x


def _build_decoder(
    weights: CodecWeights, shape: _Shape, products: Products, layout: CarryLayout
) -> _Stack:
    """Latents (B, T, hidden_size) to samples (B, T * hop, 1) before their tanh."""
    stack = _Stack(weights, products, layout, Timing(rate=1))
    channels = shape.decoder_size
    stack.conv("decoder.conv1", shape.hidden_size, channels, KERNEL)
    for number, ratio in enumerate(reversed(shape.ratios)):
        name = f"decoder.block.{number}"
        stack.upsample(name, channels, channels // 2, ratio)
        channels //= 2
        stack.residuals(name, channels)
    stack.conv("decoder.conv2", channels, 1, KERNEL, snake="decoder.snake1")
    return stack


def _build_encoder(
    weights: CodecWeights, shape: _Shape, products: Products, layout: CarryLayout
) -> _Stack:
    """Samples (B, T * hop, 1) to latents (B, T, hidden_size)."""
    stack = _Stack(weights, products, layout, Timing(rate=shape.hop))
    channels = shape.encoder_size
    stack.conv("encoder.conv1", 1, channels, KERNEL)
    for number, ratio in enumerate(shape.ratios):
        name = f"encoder.block.{number}"
        stack.residuals(name, channels)
        stack.downsample(name, channels, 2 * channels, ratio)
        channels *= 2
    stack.conv("encoder.conv2", channels, shape.hidden_size, LATENT_KERNEL, "encoder.snake1")
    return stack


def _read_quantizer(weights: CodecWeights, shape: _Shape, products: Products) -> CosineQuantizer:
    config = weights.config
    size, dim = config.integer("codebook_size", 1024), config.integer("codebook_dim", 8)
    width = shape.hidden_size
    books = []
    for index in range(config.integer("n_codebooks", 9)):
        name = f"quantizer.quantizers.{index}"
        books.append(
            CosineCodebook(
                entries=weights.tensor(f"{name}.codebook.weight", (size, dim)),
                down=weights.normed(f"{name}.in_proj", (dim, width, 1))[:, :, 0],
                down_bias=weights.tensor(f"{name}.in_proj.bias", (dim,)),
                up=weights.normed(f"{name}.out_proj", (width, dim, 1))[:, :, 0],
                up_bias=weights.tensor(f"{name}.out_proj.bias", (width,)),
            )
        )
    return CosineQuantizer(books, products)


def _read_shape(weights: CodecWeights) -> _Shape:
    config = weights.config
    ratios = [int(ratio) for ratio in config.raw("downsampling_ratios", [2, 4, 8, 8])]
    encoder_size = config.integer("encoder_hidden_size", 64)
    decoder_size = config.integer("decoder_hidden_size", 1536)
    if not ratios or min(ratios) < 2:
        raise ValueError(f"dac: downsampling_ratios is {ratios}, expected numbers of at least 2")
    if decoder_size % 2 ** len(ratios):
        raise ValueError(
            f"dac: decoder_hidden_size is {decoder_size}, "
            f"expected a multiple of {2 ** len(ratios)} for {len(ratios)} ratios"
        )
    hidden_size = encoder_size * 2 ** len(ratios)
    config.choice("upsampling_ratios", (ratios[::-1],), ratios[::-1])
    config.choice("hidden_size", (hidden_size,), hidden_size)
    config.choice("hop_length", (math.prod(ratios),), math.prod(ratios))
    weights.leave("quantizer_dropout", "commitment_loss_weight", "codebook_loss_weight")
    return _Shape(tuple(ratios), encoder_size, decoder_size, hidden_size)


def load(weights: CodecWeights, products: Products) -> Dac:
    """Reads a DAC; the registry's entry."""
    return Dac(weights, products)
