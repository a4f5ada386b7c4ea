"""The RVQ-VAE of short spectra: ConvNeXt blocks between strided convolutions, all causal.

The 31x1024 codec at 22.05 kHz and 12.5 Hz has this layout (names of its tensors are kept), and
so has every other size of it. config.json holds ``model_type`` "rvq_vae", ``sampling_rate`` and
the sizes by the names of the published ``codec_config``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from antiphon_vocoder.codec.carry import NAME, Carry, CarryLayout
from antiphon_vocoder.codec.causal import CausalConv, CausalTransposedConv
from antiphon_vocoder.codec.contract import CodecSpec
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.quantizer import ResidualQuantizer
from antiphon_vocoder.codec.seanet import Layer, run
from antiphon_vocoder.codec.spectrum import Analysis, Synthesis
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec.steps import depth_of, frames_of_codes, frames_of_pcm
from antiphon_vocoder.codec.streamed import StreamedCodec
from antiphon_vocoder.codec.weights import CodecWeights

EXPANSION = 4
NORM_EPS = 1e-6
CONTROL = "_control_codes"
SILENCE = "codec_silence_tokens"


@dataclass(frozen=True, slots=True)
class _Shape:
    latent_size: int
    n_fft: int
    hop_length: int
    widths: tuple[int, ...]
    rates: tuple[int, ...]
    num_blocks: int
    kernel_size: int

    @property
    def channels(self) -> int:
        """Of a spectrum."""
        return self.n_fft + 2


class ConvNextBlock:
    """x + W2 GELU(W1 LN(depthwise(x))), the depthwise convolution causal."""

    def __init__(
        self,
        weights: CodecWeights,
        name: str,
        width: int,
        kernel: int,
        products: Products,
        layout: CarryLayout,
    ) -> None:
        inner = EXPANSION * width

        def pair(part: str, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
            weight = weights.tensor(f"{name}.{part}.weight", shape)
            return weight, products.put(weights.tensor(f"{name}.{part}.bias", shape[:1]))

        depthwise, self._depthwise_bias = pair("dwconv", (width, 1, kernel))
        self._depthwise = products.put(depthwise[:, 0].t())
        norm, self._norm_bias = pair("norm", (width,))
        self._norm = products.put(norm)
        up, self._up_bias = pair("pwconv1", (inner, width, 1))
        down, self._down_bias = pair("pwconv2", (width, inner, 1))
        self._up = products.put(up[:, :, 0].t())
        self._down = products.put(down[:, :, 0].t())
        self._place = layout.place(kernel - 1, width)

    def __call__(self, x: torch.Tensor, carry: Carry) -> torch.Tensor:
        """x (B, T, width) to the same shape."""
        batch, steps, width = x.shape
        extended = carry.extend(self._place, x)
        mixed = torch.addcmul(self._depthwise_bias, extended[:, :steps], self._depthwise[0])
        for position in range(1, self._depthwise.shape[0]):
            mixed.addcmul_(extended[:, position : position + steps], self._depthwise[position])
        normed = functional.layer_norm(mixed, (width,), self._norm, self._norm_bias, NORM_EPS)
        inner = torch.addmm(self._up_bias, normed.view(batch * steps, width), self._up)
        out = torch.addmm(self._down_bias, functional.gelu(inner), self._down)
        return out.view(batch, steps, width).add_(x)


class RvqVae(StreamedCodec):
    """A loaded RVQ-VAE; see :class:`antiphon_vocoder.codec.contract.Codec`."""

    def __init__(self, weights: CodecWeights, products: Products) -> None:
        config = weights.config
        super().__init__(products)
        self._shape = shape = _read_shape(weights)
        count = config.integer("num_quantizers")
        size = config.integer("codebook_size")
        books = [
            weights.tensor(f"prvq.mus_list.{i}", (size, shape.latent_size)) for i in range(count)
        ]
        for index in range(count):
            # Of the training objective; nothing at run time reads it.
            weights.tensor(f"prvq._variance_list.{index}.variance", ())
        self._quantizer = ResidualQuantizer(books, products)
        self._read_control(weights, count)
        frame = shape.hop_length * math.prod(shape.rates)
        config.choice("wav_to_token_ratio", (frame,), frame)
        self._decoder_layout = CarryLayout()
        self._decoder = self._build_decoder(weights, self._decoder_layout)
        self._synthesis = Synthesis(shape.n_fft, shape.hop_length, products, self._decoder_layout)
        self._encoder_layout = CarryLayout()
        self._analysis = Analysis(shape.n_fft, shape.hop_length, products, self._encoder_layout)
        self._encoder = self._build_encoder(weights, self._encoder_layout)
        self.spec = CodecSpec(
            name="rvq_vae",
            sample_rate=config.integer("sampling_rate"),
            frame_samples=frame,
            codebook_count=count,
            codebook_size=size,
            control_codes=frozenset(self._control.tolist()),
            decode_delay_samples=self._synthesis.delay,
            encode_lookahead_samples=self._analysis.lookahead,
        )

    def _read_control(self, weights: CodecWeights, count: int) -> None:
        """Ids above the codebook that a speech model marks turns with, and what they sound as."""
        device = self._products.device
        control = torch.zeros(0, dtype=torch.int64)
        silence = torch.zeros(count, dtype=torch.int64)
        if CONTROL in weights or SILENCE in weights:
            control = weights.integers(CONTROL, weights.shape(CONTROL)).flatten().unique()
            silence = weights.integers(SILENCE, (count,))
        self._control = control.to(device)
        self._silence = silence.to(device)[:, None]

    def _build_encoder(self, weights: CodecWeights, layout: CarryLayout) -> list[Layer]:
        shape = self._shape
        layers: list[Layer] = []
        inputs = shape.channels
        outputs = (*shape.widths, shape.latent_size)
        for width, rate in zip(outputs, (1, *shape.rates), strict=True):
            weight = weights.tensor(f"encoder.layers.{len(layers)}.weight", (width, inputs, rate))
            layers.append(CausalConv(weight, None, self._products, layout, stride=rate))
            if len(layers) < 1 + (shape.num_blocks + 1) * len(shape.rates):
                layers += self._blocks(weights, "encoder", len(layers), width, layout)
            inputs = width
        return layers

    def _build_decoder(self, weights: CodecWeights, layout: CarryLayout) -> list[Layer]:
        shape = self._shape
        layers: list[Layer] = []
        inputs = shape.latent_size
        for width, rate in zip(reversed(shape.widths), reversed(shape.rates), strict=True):
            weight = weights.tensor(f"decoder.layers.{len(layers)}.weight", (inputs, width, rate))
            layers.append(CausalTransposedConv(weight, None, self._products, layout, stride=rate))
            layers += self._blocks(weights, "decoder", len(layers), width, layout)
            inputs = width
        name = f"decoder.layers.{len(layers)}.weight"
        last = weights.tensor(name, (shape.channels, inputs, 1))
        layers.append(CausalConv(last, None, self._products, layout))
        return layers

    def _blocks(
        self, weights: CodecWeights, side: str, first: int, width: int, layout: CarryLayout
    ) -> list[Layer]:
        kernel = self._shape.kernel_size
        return [
            ConvNextBlock(weights, f"{side}.layers.{index}", width, kernel, self._products, layout)
            for index in range(first, first + self._shape.num_blocks)
        ]

    def decoder_state(self, slots: int, max_frames: int) -> SlotState:
        """Contexts of the blocks, and the last frames and samples of the synthesis."""
        return self._state(slots, max_frames, self._decoder_layout)

    def encoder_state(self, slots: int, max_frames: int) -> SlotState:
        """Contexts of the blocks, and the last samples."""
        return self._state(slots, max_frames, self._encoder_layout)

    def _state(self, slots: int, max_frames: int, layout: CarryLayout) -> SlotState:
        tensor = layout.tensor(slots, self.device, torch.float32)
        return SlotState(slots, max_frames, {NAME: tensor})

    def decode_step(
        self,
        codes: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
    ) -> torch.Tensor:
        """codes (B, k, T) to pcm (B, T * frame_samples), which trails."""
        frames_of_codes(self.spec, codes, state)
        with self._products.active():
            carry = Carry(state, rows, exec_mask)
            marked = (codes[..., None] == self._control).any(dim=-1)
            codes = torch.where(marked, self._silence[: codes.shape[1]], codes)
            x = self._quantizer.decode(codes).to(self._products.dtype)
            pcm = self._synthesis(run(self._decoder, x, carry), carry)
            carry.commit()
            return pcm

    def decode_flush(
        self, state: SlotState, rows: torch.Tensor | None, exec_mask: torch.Tensor
    ) -> torch.Tensor:
        """The samples (B, decode_delay_samples) that still trail."""
        with self._products.active():
            return self._synthesis.flush(exec_mask.shape[0], Carry(state, rows, exec_mask))

    def encode_step(
        self,
        pcm: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
        codebooks: int | None = None,
    ) -> torch.Tensor:
        """pcm (B, T * frame_samples + encode_lookahead_samples) to codes (B, codebooks, T)."""
        frames_of_pcm(self.spec, pcm, state)
        depth = depth_of(self.spec, codebooks)
        with self._products.active():
            carry = Carry(state, rows, exec_mask)
            x = self._analysis(pcm, carry).to(self._products.dtype)
            x = run(self._encoder, x, carry)
            carry.commit()
            return self._quantizer.encode(x, depth)


def _read_shape(weights: CodecWeights) -> _Shape:
    config = weights.config
    config.choice("groups", (1,), 1)
    base = config.integer("base_hidden_size")
    rates = tuple(int(rate) for rate in config.raw("rates"))
    widths = tuple(base * int(factor) for factor in config.raw("channel_mult"))
    if len(rates) != len(widths):
        raise ValueError(f"rvq_vae: {len(rates)} rates for {len(widths)} entries of channel_mult")
    return _Shape(
        latent_size=config.integer("latent_size"),
        n_fft=config.integer("n_fft", least=2),
        hop_length=config.integer("hop_length"),
        widths=widths,
        rates=rates,
        num_blocks=config.integer("num_blocks"),
        kernel_size=config.integer("kernel_size", 7, least=2),
    )


def load(weights: CodecWeights, products: Products) -> RvqVae:
    """Reads an RVQ-VAE; the registry's entry."""
    return RvqVae(weights, products)
