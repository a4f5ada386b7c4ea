"""Mimi (Defossez et al. 2024): 24 kHz, 80 ms frames, a semantic and many acoustic codebooks.

Tensor names, shapes and config.json are transformers' ``MimiModel``. Everything is causal: a
frame's samples need no later frame, in either direction.
"""

from __future__ import annotations

import torch

from antiphon_vocoder.codec import seanet, transformer
from antiphon_vocoder.codec.carry import NAME, STARTED, Carry, CarryLayout
from antiphon_vocoder.codec.causal import CausalConv, DepthwiseUpsample
from antiphon_vocoder.codec.contract import CodecSpec
from antiphon_vocoder.codec.products import Products
from antiphon_vocoder.codec.quantizer import ResidualQuantizer
from antiphon_vocoder.codec.state import SlotState
from antiphon_vocoder.codec.steps import depth_of, frames_of_codes, frames_of_pcm
from antiphon_vocoder.codec.streamed import StreamedCodec
from antiphon_vocoder.codec.weights import CodecWeights

LATENT_STRIDE = 2
"""Transformer positions of one frame."""

USAGE_FLOOR = 1e-5


class SplitQuantizer:
    """Semantic and acoustic codebooks, each behind projections of its own, on the same input."""

    def __init__(self, weights: CodecWeights, hidden: int, products: Products) -> None:
        config = weights.config
        self.count = config.integer("num_quantizers")
        self._semantic_count = config.integer("num_semantic_quantizers", 1)
        self.size = config.integer("codebook_size")
        self._dim = config.integer("codebook_dim", hidden)
        config.choice("vector_quantization_hidden_dimension", (self._dim,), self._dim)
        self._products = products
        groups = (
            ("semantic", self._semantic_count),
            ("acoustic", self.count - self._semantic_count),
        )
        inward, outward, parts = [], [], []
        for kind, count in groups:
            name = f"quantizer.{kind}_residual_vector_quantizer"
            books = [self._codebook(weights, f"{name}.layers.{i}.codebook") for i in range(count)]
            parts.append(ResidualQuantizer(books, products))
            if self._dim != hidden:
                inward.append(weights.tensor(f"{name}.input_proj.weight", (self._dim, hidden, 1)))
                outward.append(weights.tensor(f"{name}.output_proj.weight", (hidden, self._dim, 1)))
        self._semantic, self._acoustic = parts
        # Projections stay fp32: they are a part of the quantiser.
        self._inward = self._outward = None
        if inward:
            self._inward = products.put_exact(torch.cat(inward).squeeze(2).t())
            self._outward = products.put_exact(torch.cat(outward, 1).squeeze(2).t())

    def _codebook(self, weights: CodecWeights, name: str) -> torch.Tensor:
        weights.tensor(f"{name}.initialized", (1,))
        usage = weights.tensor(f"{name}.cluster_usage", (self.size,))
        total = weights.tensor(f"{name}.embed_sum", (self.size, self._dim))
        return total / usage.clamp(min=USAGE_FLOOR)[:, None]

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """codes (B, k, T) to latents (B, T, hidden) of the products' dtype."""
        depth = codes.shape[1]
        parts = [self._semantic.decode(codes[:, : self._semantic_count])]
        if depth > self._semantic_count:
            parts.append(self._acoustic.decode(codes[:, self._semantic_count :]))
        if self._outward is None:
            latents = parts[0] if len(parts) == 1 else parts[0] + parts[1]
        else:
            with self._products.exact():
                latents = torch.cat(parts, dim=2) @ self._outward[: len(parts) * self._dim]
        return latents.to(self._products.dtype)

    def encode(self, latents: torch.Tensor, depth: int) -> torch.Tensor:
        """latents (B, T, hidden) to codes (B, depth, T)."""
        latents = latents.float()
        semantic = acoustic = latents
        if self._inward is not None:
            with self._products.exact():
                semantic, acoustic = (latents @ self._inward).split(self._dim, dim=2)
        codes = [self._semantic.encode(semantic, min(depth, self._semantic_count))]
        if depth > self._semantic_count:
            codes.append(self._acoustic.encode(acoustic, depth - self._semantic_count))
        return torch.cat(codes, dim=1)


class Mimi(StreamedCodec):
    """A loaded Mimi; see :class:`antiphon_vocoder.codec.contract.Codec`."""

    def __init__(self, weights: CodecWeights, products: Products) -> None:
        config = weights.config
        shape = seanet.read_shape(weights, lstm=False)
        if shape.audio_channels != 1:
            raise ValueError(f"mimi: audio_channels is {shape.audio_channels}; supported: 1")
        layers = transformer.read_shape(weights)
        sample_rate = config.integer("sampling_rate", 24000)
        frame = shape.hop * LATENT_STRIDE
        for key in ("frame_rate", "_frame_rate"):
            config.choice(key, (sample_rate / frame,), sample_rate / frame)
        # Of training, of another runtime, or of positions that are rotated without a table.
        weights.leave("layer_scale_initial_scale", "use_streaming", "tie_word_embeddings",
                      "max_position_embeddings")  # fmt: skip
        config.choice("upsample_groups", (shape.hidden_size,), shape.hidden_size)
        super().__init__(products)
        self._layers = layers
        self._quantizer = SplitQuantizer(weights, shape.hidden_size, products)
        self._build_decoder(weights, shape)
        self._build_encoder(weights, shape)
        self.spec = CodecSpec(
            name="mimi",
            sample_rate=sample_rate,
            frame_samples=frame,
            codebook_count=self._quantizer.count,
            codebook_size=self._quantizer.size,
        )

    def _build_decoder(self, weights: CodecWeights, shape: seanet.SeanetShape) -> None:
        products = self._products
        self._decoder_layout = layout = CarryLayout()
        upsample = weights.tensor("upsample.conv.weight", (shape.hidden_size, 1, 2 * LATENT_STRIDE))
        self._upsample = DepthwiseUpsample(upsample, products, layout, stride=LATENT_STRIDE)
        self._decoder_transformer = transformer.RingTransformer(
            weights, "decoder_transformer", self._layers, products
        )
        self._decoder = seanet.build_decoder(weights, shape, products, layout)

    def _build_encoder(self, weights: CodecWeights, shape: seanet.SeanetShape) -> None:
        products = self._products
        self._encoder_layout = layout = CarryLayout()
        self._encoder = seanet.build_encoder(weights, shape, products, layout)
        self._encoder_transformer = transformer.RingTransformer(
            weights, "encoder_transformer", self._layers, products
        )
        hidden = shape.hidden_size
        self._downsample = CausalConv(
            weights.tensor("downsample.conv.weight", (hidden, hidden, 2 * LATENT_STRIDE)),
            None,
            products,
            layout,
            stride=LATENT_STRIDE,
            pad="replicate",
        )

    def decoder_state(self, slots: int, max_frames: int) -> SlotState:
        """Contexts of the convolutions and rings of the transformer."""
        return self._state(slots, max_frames, self._decoder_transformer, self._decoder_layout)

    def encoder_state(self, slots: int, max_frames: int) -> SlotState:
        """As :meth:`decoder_state`, and the mark of a slot's beginning."""
        state = self._state(slots, max_frames, self._encoder_transformer, self._encoder_layout)
        state.tensors[STARTED] = torch.zeros(slots + 1, dtype=torch.int64, device=self.device)
        return state

    def _state(
        self,
        slots: int,
        max_frames: int,
        layers: transformer.RingTransformer,
        layout: CarryLayout,
    ) -> SlotState:
        tensors = layers.state_tensors(slots, max_frames * LATENT_STRIDE)
        tensors[NAME] = layout.tensor(slots, self.device, self._products.dtype)
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
            x = self._upsample(self._quantizer.decode(codes), carry)
            x = self._decoder_transformer(x, state, rows, carry.targets)
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
            x = self._encoder_transformer(x, state, rows, carry.targets)
            x = self._downsample(x, carry)
            carry.commit()
            return self._quantizer.encode(x, depth)


def load(weights: CodecWeights, products: Products) -> Mimi:
    """Reads a Mimi; the registry's entry."""
    return Mimi(weights, products)
