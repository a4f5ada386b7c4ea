"""EnCodec at 48 kHz (Defossez et al. 2022): stereo, in chunks of a second that overlap a little.

Tensor names, shapes and config.json are transformers' ``EncodecModel``. Every convolution is
normalised over its whole chunk, and looks as far ahead as back: a chunk is the least that can be
run, so there are whole clips only, and streams are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import torch
from torch.nn import functional

from antiphon_vocoder.codec.contract import CodecSpec
from antiphon_vocoder.codec.placed import PlacedCodec
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.quantizer import ResidualQuantizer
from antiphon_vocoder.codec.recurrent import read_lstm
from antiphon_vocoder.codec.seanet import SeanetShape
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec.steps import depth_of
from antiphon_vocoder.codec.weights import CodecWeights

NORM_EPS = 1e-5
LEAST_SCALE = 1e-8

Layer = Callable[[torch.Tensor], torch.Tensor]


class ChunkedEncodec(PlacedCodec):
    """A loaded EnCodec of overlapping chunks; see :class:`antiphon_vocoder.codec.contract.Codec`.

    Codes of a clip are those of its chunks, one after another, each chunk of ``chunk_frames``;
    only the last may be shorter. Chunks are coded at a loudness of one, so a clip has one scale
    a chunk beside its codes.

    Attributes:
        chunk_samples, chunk_frames: length of a chunk.
        stride_samples: from the begin of a chunk to that of the next.
    """

    def __init__(
        self,
        weights: CodecWeights,
        shape: SeanetShape,
        quantizer: ResidualQuantizer,
        sample_rate: int,
        products: Products,
    ) -> None:
        config = weights.config
        config.choice("normalize", (True,))
        if shape.audio_channels != 2:
            raise ValueError(f"encodec: audio_channels is {shape.audio_channels}; supported: 2")
        overlap = config.number("overlap")
        self.chunk_samples = int(config.number("chunk_length_s") * sample_rate)
        self.stride_samples = max(1, int((1.0 - overlap) * self.chunk_samples))
        self.chunk_frames, left = divmod(self.chunk_samples, shape.hop)
        if left or not 0 <= overlap < 1 or not self.chunk_frames:
            raise ValueError(
                f"encodec: a chunk of {self.chunk_samples} samples with an overlap of {overlap}; "
                f"expected a multiple of {shape.hop} samples and an overlap of 0 to below 1"
            )
        super().__init__(products)
        self._quantizer = quantizer
        self._encoder = _build_encoder(weights, shape, products)
        self._decoder = _build_decoder(weights, shape, products)
        # A triangle over the chunk; where two overlap it cross-fades them linearly.
        ramp = torch.linspace(0, 1, self.chunk_samples + 2)[1:-1]
        self._fade = products.put_exact(0.5 - (ramp - 0.5).abs())
        self.spec = CodecSpec(
            name="encodec",
            sample_rate=sample_rate,
            channels=shape.audio_channels,
            frame_samples=shape.hop,
            codebook_count=quantizer.count,
            codebook_size=quantizer.size,
            streams_decode=False,
            streams_encode=False,
        )

    def encode(self, pcm: torch.Tensor, codebooks: int | None = None) -> torch.Tensor:
        """As :meth:`encode_scaled`, the codes only."""
        return self.encode_scaled(pcm, codebooks)[0]

    def encode_scaled(
        self, pcm: torch.Tensor, codebooks: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """pcm (B, 2, samples) fp32, whole clips, padded with zeros to whole chunks.

        There is a chunk for each stride begun, none for the overlap that ends the last one.

        Returns:
            codes (B, codebooks, chunks * chunk_frames) int64, and scales (B, chunks) fp32.
        """
        depth = depth_of(self.spec, codebooks)
        batch, _, samples = pcm.shape
        chunks = -(-samples // self.stride_samples)
        if not chunks:
            codes = torch.zeros(batch, depth, 0, dtype=torch.int64, device=self.device)
            return codes, torch.zeros(batch, 0, device=self.device)
        total = (chunks - 1) * self.stride_samples + self.chunk_samples
        pcm = functional.pad(pcm, (0, total - samples))
        parts, scales = [], []
        with self._products.active():
            for begin in range(0, chunks * self.stride_samples, self.stride_samples):
                chunk = pcm[..., begin : begin + self.chunk_samples]
                loudness = chunk.mean(dim=1).square().mean(dim=1).sqrt() + LEAST_SCALE
                latents = _run(self._encoder, (chunk / loudness[:, None, None]).to(self._dtype))
                parts.append(self._quantizer.encode(latents.transpose(1, 2), depth))
                scales.append(loudness)
        return torch.cat(parts, dim=2), torch.stack(scales, dim=1)

    def decode(self, codes: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
        """Whole clips.

        Args:
            codes: (B, k, frames) int64, chunk after chunk.
            scales: (B, chunks) fp32; without them every chunk has the loudness of one.

        Returns:
            pcm (B, 2, samples) fp32: a stride for each chunk but the last, and the last whole.

        Raises:
            ValueError: scales do not fit the codes.
        """
        batch, _, frames = codes.shape
        chunks = -(-frames // self.chunk_frames)
        if scales is None:
            scales = torch.ones(batch, chunks, device=self.device)
        if scales.shape != (batch, chunks):
            raise ValueError(
                f"scales are {tuple(scales.shape)}, {frames} frames of {batch} clips need "
                f"{(batch, chunks)}"
            )
        if not chunks:
            return torch.zeros(batch, self.spec.channels, 0, device=self.device)
        last = frames - (chunks - 1) * self.chunk_frames
        total = (chunks - 1) * self.stride_samples + last * self.spec.frame_samples
        pcm = torch.zeros(batch, self.spec.channels, total, device=self.device)
        weights = torch.zeros(total, device=self.device)
        with self._products.active():
            for number, part in enumerate(codes.split(self.chunk_frames, dim=2)):
                latents = self._quantizer.decode(part).to(self._dtype).transpose(1, 2)
                chunk = _run(self._decoder, latents).float() * scales[:, number, None, None]
                fade = self._fade[: chunk.shape[2]]
                begin = number * self.stride_samples
                pcm[..., begin : begin + chunk.shape[2]] += chunk * fade
                weights[begin : begin + chunk.shape[2]] += fade
        return pcm / weights

    @property
    def _dtype(self) -> torch.dtype:
        return self._products.dtype

    def decoder_state(self, slots: int, max_frames: int) -> SlotState:
        """Refused: ValueError."""
        _refuse_streams()

    def encoder_state(self, slots: int, max_frames: int) -> SlotState:
        """Refused: ValueError."""
        _refuse_streams()

    def decode_step(
        self,
        codes: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
    ) -> torch.Tensor:
        """Refused: ValueError."""
        _refuse_streams()

    def decode_flush(
        self, state: SlotState, rows: torch.Tensor | None, exec_mask: torch.Tensor
    ) -> torch.Tensor:
        """Refused: ValueError."""
        _refuse_streams()

    def encode_step(
        self,
        pcm: torch.Tensor,
        state: SlotState,
        rows: torch.Tensor | None,
        exec_mask: torch.Tensor,
        codebooks: int | None = None,
    ) -> torch.Tensor:
        """Refused: ValueError."""
        _refuse_streams()


def _refuse_streams() -> NoReturn:
    raise ValueError(
        "encodec with time_group_norm codes whole chunks and cannot be streamed; "
        "encode and decode whole clips, or use its 24 kHz version"
    )


class _Reader:
    """Makes layers over (B, channels, T) of a checkpoint's tensors."""

    def __init__(self, weights: CodecWeights, shape: SeanetShape, products: Products) -> None:
        self._weights = weights
        self._shape = shape
        self._products = products

    def conv(
        self,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
    ) -> Layer:
        """A convolution and its norm; the padding is half on either side, more on the left."""
        weight, bias, norm = self._tensors(name, (outputs, inputs, kernel), outputs)
        padding = (kernel - 1) * dilation + 1 - stride
        left = padding - padding // 2
        mode = self._shape.pad_mode

        def layer(x: torch.Tensor) -> torch.Tensor:
            padded = _padded(x, left, padding // 2 + -x.shape[2] % stride, mode)
            return norm(functional.conv1d(padded, weight, bias, stride, dilation=dilation))

        return layer

    def transposed(self, name: str, inputs: int, outputs: int, stride: int) -> Layer:
        """A transposed convolution of two strides and its norm, cropped after it."""
        weight, bias, norm = self._tensors(name, (inputs, outputs, 2 * stride), outputs)
        right = stride // 2

        def layer(x: torch.Tensor) -> torch.Tensor:
            out = norm(functional.conv_transpose1d(x, weight, bias, stride))
            return out[..., stride - right : out.shape[2] - right]

        return layer

    def residual(self, name: str, channels: int, number: int) -> Layer:
        """Two convolutions beside a shortcut."""
        shape = self._shape
        inner = channels // shape.compress
        first = self.conv(
            f"{name}.block.1",
            channels,
            inner,
            shape.residual_kernel_size,
            dilation=shape.dilation_growth_rate**number,
        )
        second = self.conv(f"{name}.block.3", inner, channels, 1)
        shortcut = None
        if shape.use_conv_shortcut:
            shortcut = self.conv(f"{name}.shortcut", channels, channels, 1)

        def layer(x: torch.Tensor) -> torch.Tensor:
            inside = second(functional.elu(first(functional.elu(x))))
            return inside + (x if shortcut is None else shortcut(x))

        return layer

    def lstm(self, name: str, channels: int) -> Layer:
        """x + lstm(x)."""
        lstm = read_lstm(
            self._weights, f"{name}.lstm", channels, self._shape.num_lstm_layers, self._products
        )
        return lambda x: x + lstm(x.transpose(1, 2))[0].transpose(1, 2)

    def _tensors(
        self, name: str, shape: tuple[int, ...], outputs: int
    ) -> tuple[torch.Tensor, torch.Tensor, Layer]:
        put, read = self._products.put, self._weights.tensor
        weight = put(read(f"{name}.conv.weight", shape))
        bias = put(read(f"{name}.conv.bias", (outputs,)))
        gain = put(read(f"{name}.norm.weight", (outputs,)))
        shift = put(read(f"{name}.norm.bias", (outputs,)))
        return weight, bias, lambda x: functional.group_norm(x, 1, gain, shift, NORM_EPS)


def _build_encoder(weights: CodecWeights, shape: SeanetShape, products: Products) -> list[Layer]:
    """(B, 2, T * hop) to (B, hidden_size, T); an activation counts as a layer."""
    read, prefix = _Reader(weights, shape, products), "encoder.layers"
    channels = shape.num_filters
    layers = [read.conv(f"{prefix}.0", shape.audio_channels, channels, shape.kernel_size)]
    for ratio in reversed(shape.ratios):
        for number in range(shape.num_residual_layers):
            layers.append(read.residual(f"{prefix}.{len(layers)}", channels, number))
        layers.append(functional.elu)
        name = f"{prefix}.{len(layers)}"
        layers.append(read.conv(name, channels, 2 * channels, 2 * ratio, stride=ratio))
        channels *= 2
    layers += [read.lstm(f"{prefix}.{len(layers)}", channels), functional.elu]
    name = f"{prefix}.{len(layers)}"
    layers.append(read.conv(name, channels, shape.hidden_size, shape.last_kernel_size))
    return layers


def _build_decoder(weights: CodecWeights, shape: SeanetShape, products: Products) -> list[Layer]:
    """(B, hidden_size, T) to (B, 2, T * hop)."""
    read, prefix = _Reader(weights, shape, products), "decoder.layers"
    channels = shape.num_filters * 2 ** len(shape.ratios)
    layers = [read.conv(f"{prefix}.0", shape.hidden_size, channels, shape.kernel_size)]
    layers.append(read.lstm(f"{prefix}.1", channels))
    for ratio in shape.ratios:
        layers.append(functional.elu)
        name = f"{prefix}.{len(layers)}"
        layers.append(read.transposed(name, channels, channels // 2, ratio))
        channels //= 2
        for number in range(shape.num_residual_layers):
            layers.append(read.residual(f"{prefix}.{len(layers)}", channels, number))
    layers.append(functional.elu)
    name = f"{prefix}.{len(layers)}"
    layers.append(read.conv(name, channels, shape.audio_channels, shape.last_kernel_size))
    return layers


def _padded(x: torch.Tensor, left: int, right: int, mode: str) -> torch.Tensor:
    """x (B, C, T) padded; one too short to be mirrored is extended by zeros for it."""
    missing = max(left, right) + 1 - x.shape[2] if mode == "reflect" else 0
    if missing <= 0:
        return functional.pad(x, (left, right), mode)
    padded = functional.pad(functional.pad(x, (0, missing)), (left, right), mode)
    return padded[..., : padded.shape[2] - missing]


def _run(layers: list[Layer], x: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x
