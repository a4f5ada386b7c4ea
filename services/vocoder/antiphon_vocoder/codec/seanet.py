"""The SEANet convolution stacks of Mimi and EnCodec (Tagliasacchi et al. 2020), causal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from antiphon_vocoder.codec.carry import Carry, CarryLayout
from antiphon_vocoder.codec.causal import CausalConv, CausalTransposedConv, ResidualUnit
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.recurrent import ResidualLstm
from antiphon_vocoder.codec.weights import CodecWeights

Layer = Callable[[torch.Tensor, Carry], torch.Tensor]


@dataclass(frozen=True, slots=True)
class SeanetShape:
    """Sizes of a stack, in the vocabulary of config.json.

    Attributes:
        ratios: upsampling ratios of the decoder; the encoder has them in reverse.
        pad_mode: what stands before a stream: constant (zeros) or reflect.
    """

    audio_channels: int
    num_filters: int
    hidden_size: int
    ratios: tuple[int, ...]
    kernel_size: int
    last_kernel_size: int
    residual_kernel_size: int
    num_residual_layers: int
    dilation_growth_rate: int
    compress: int
    use_conv_shortcut: bool
    num_lstm_layers: int
    pad_mode: str

    @property
    def hop(self) -> int:
        """Samples of one latent position."""
        return math.prod(self.ratios)


def read_shape(weights: CodecWeights, *, lstm: bool, causal: bool = True) -> SeanetShape:
    """The stack that a config.json describes; values that are not served are refused."""
    config = weights.config
    config.choice("use_causal_conv", (causal,), True)
    config.choice("trim_right_ratio", (1.0,), 1.0)
    ratios = tuple(int(ratio) for ratio in config.raw("upsampling_ratios", [8, 6, 5, 4]))
    return SeanetShape(
        audio_channels=config.integer("audio_channels", 1),
        num_filters=config.integer("num_filters"),
        hidden_size=config.integer("hidden_size"),
        ratios=ratios,
        kernel_size=config.integer("kernel_size", 7),
        last_kernel_size=config.integer("last_kernel_size"),
        residual_kernel_size=config.integer("residual_kernel_size", 3),
        num_residual_layers=config.integer("num_residual_layers", 1),
        dilation_growth_rate=config.integer("dilation_growth_rate", 2),
        compress=config.integer("compress", 2),
        use_conv_shortcut=config.flag("use_conv_shortcut", lstm),
        num_lstm_layers=config.integer("num_lstm_layers", 2, least=0) if lstm else 0,
        pad_mode=config.choice("pad_mode", ("reflect", "constant")),
    )


class _Builder:
    """Reads one stack's layers in the order of their numbers."""

    def __init__(
        self,
        weights: CodecWeights,
        prefix: str,
        shape: SeanetShape,
        products: Products,
        layout: CarryLayout,
    ) -> None:
        self._weights = weights
        self._prefix = prefix
        self._shape = shape
        self._products = products
        self._layout = layout
        self._index = 0
        self.layers: list[Layer] = []

    def conv(self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, elu: bool) -> None:
        """A convolution, with the activation before it counted as a layer of its own."""
        self._index += elu
        name = f"{self._prefix}.{self._index}.conv"
        self.layers.append(self._conv(name, inputs, outputs, kernel, stride=stride, elu=elu))
        self._index += 1

    def transposed(self, inputs: int, outputs: int, stride: int) -> None:
        """ELU and a transposed convolution with a kernel of two strides."""
        name = f"{self._prefix}.{self._index + 1}.conv"
        weight = self._weights.normed(name, (inputs, outputs, 2 * stride))
        bias = self._weights.tensor(f"{name}.bias", (outputs,))
        self.layers.append(
            CausalTransposedConv(
                weight, bias, self._products, self._layout, stride=stride, elu=True
            )
        )
        self._index += 2

    def residuals(self, channels: int) -> None:
        """The residual units of one rate."""
        shape = self._shape
        inner = channels // shape.compress
        for number in range(shape.num_residual_layers):
            name = f"{self._prefix}.{self._index}"
            first = self._conv(
                f"{name}.block.1.conv",
                channels,
                inner,
                shape.residual_kernel_size,
                dilation=shape.dilation_growth_rate**number,
                elu=True,
            )
            second = self._conv(f"{name}.block.3.conv", inner, channels, 1, elu=True)
            shortcut = None
            if shape.use_conv_shortcut:
                shortcut = self._conv(f"{name}.shortcut.conv", channels, channels, 1)
            self.layers.append(ResidualUnit(first, second, shortcut))
            self._index += 1

    def lstm(self, channels: int) -> None:
        """The recurrent layers, if there are any."""
        if self._shape.num_lstm_layers:
            name = f"{self._prefix}.{self._index}.lstm"
            depth = self._shape.num_lstm_layers
            self.layers.append(
                ResidualLstm(self._weights, name, channels, depth, self._products, self._layout)
            )
            self._index += 1

    def _conv(
        self,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        elu: bool = False,
    ) -> CausalConv:
        return CausalConv(
            self._weights.normed(name, (outputs, inputs, kernel)),
            self._weights.tensor(f"{name}.bias", (outputs,)),
            self._products,
            self._layout,
            stride=stride,
            dilation=dilation,
            elu=elu,
            pad=self._shape.pad_mode,
        )


def build_encoder(
    weights: CodecWeights, shape: SeanetShape, products: Products, layout: CarryLayout
) -> list[Layer]:
    """PCM (B, T * hop, audio_channels) to latents (B, T, hidden_size)."""
    build = _Builder(weights, "encoder.layers", shape, products, layout)
    channels = shape.num_filters
    build.conv(shape.audio_channels, channels, shape.kernel_size, elu=False)
    for ratio in reversed(shape.ratios):
        build.residuals(channels)
        build.conv(channels, 2 * channels, 2 * ratio, ratio, elu=True)
        channels *= 2
    build.lstm(channels)
    build.conv(channels, shape.hidden_size, shape.last_kernel_size, elu=True)
    return build.layers


def build_decoder(
    weights: CodecWeights, shape: SeanetShape, products: Products, layout: CarryLayout
) -> list[Layer]:
    """Latents (B, T, hidden_size) to PCM (B, T * hop, audio_channels)."""
    build = _Builder(weights, "decoder.layers", shape, products, layout)
    channels = shape.num_filters * 2 ** len(shape.ratios)
    build.conv(shape.hidden_size, channels, shape.kernel_size, elu=False)
    build.lstm(channels)
    for ratio in shape.ratios:
        build.transposed(channels, channels // 2, ratio)
        channels //= 2
        build.residuals(channels)
    build.conv(channels, shape.audio_channels, shape.last_kernel_size, elu=True)
    return build.layers


def run(layers: list[Layer], x: torch.Tensor, carry: Carry) -> torch.Tensor:
    """One step through a stack."""
    for layer in layers:
        x = layer(x, carry)
    return x
