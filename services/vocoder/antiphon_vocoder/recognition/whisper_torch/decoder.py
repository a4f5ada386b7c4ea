"""Whisper's decoder over rows of text, each with its own place of encoded audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from antiphon_kernels.paged_attention import paged_attention
from antiphon_kernels.store_kv import store_kv
from torch.nn import functional

from antiphon_vocoder.recognition.whisper_torch.memory import PAGE, Memory
from antiphon_vocoder.recognition.whisper_torch.weights import WhisperShape, WhisperWeights


@dataclass(frozen=True)
class RowInput:
    """What one row of a step gets.

    Attributes:
        tokens: new ones; several begin a text.
        first: position of the first.
        row: where its keys and values lie.
        audio: block table of its audio, as Memory.store returns it.
    """

    tokens: Sequence[int]
    first: int
    row: int
    audio: torch.Tensor


@dataclass(frozen=True)
class StepInputs:
    """One step as the layers read it; N tokens of B rows, all on the device."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    """(N) int64, where keys and values of the tokens go."""
    starts: torch.Tensor
    """(B + 1) int32."""
    contexts: torch.Tensor
    """(B) int32, positions of each row with these."""
    tables: torch.Tensor
    """(B, row pages) int32."""
    audio_starts: torch.Tensor
    """(N + 1) int32: every token is a row of its own to the audio, all of which it sees."""
    audio_contexts: torch.Tensor
    audio_tables: torch.Tensor
    longest: int
    """Most tokens of a row."""
    workspace: torch.Tensor | None = None
    """Of the attention kernels; without one each call makes its own."""


class Decoder:
    """Runs steps of rows that join and leave between them.

    Args:
        weights: the checkpoint.
        shape: its sizes.
        memory: where keys and values are kept.
    """

    def __init__(self, weights: WhisperWeights, shape: WhisperShape, memory: Memory) -> None:
        width = shape.width
        self._device, self._shape, self._memory = weights.device, shape, memory
        self._embedding, self._head = weights.embedding(
            shape.vocabulary, width, shape.embedding_scale
        )
        positions = "model.decoder.embed_positions.weight"
        self._positions = weights.table(positions, shape.target_positions, width)
        self._layers = [
            _Layer(weights, shape, f"model.decoder.layers.{layer}")
            for layer in range(shape.decoder_layers)
        ]
        self._norm = weights.norm("model.decoder.layer_norm", width)

    def place(self, place: int, encoded: torch.Tensor) -> torch.Tensor:
        """Keeps encoded audio (positions, width); returns its block table."""
        return self._memory.store(place, self._keys_values(encoded))

    def place_silence(self, encoded: torch.Tensor) -> None:
        """Keeps the encoding of 30 s of silence, behind all short windows."""
        self._memory.store_silence(self._keys_values(encoded))

    def __call__(
        self, rows: Sequence[RowInput], watch: dict[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Runs the rows' tokens; returns (N, width), the rows' tokens one after the other.

        Args:
            rows: at least one.
            watch: takes the audio queries (N, heads, head width) of the layers that it names.
        """
        return self.run(self._step(rows), watch)

    def run(self, step: StepInputs, watch: dict[int, torch.Tensor] | None = None) -> torch.Tensor:
        """As a call, of a step whose inputs lie on the device."""
        x = self._embedding(step.tokens) + self._positions[step.positions]
        for number, layer in enumerate(self._layers):
            x, queries = layer(x, step, self._memory.text[number], self._memory.audio[number])
            if watch is not None and number in watch:
                watch[number] = queries
        return self._norm(x)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x (N, width) to (N, vocabulary) fp32."""
        return self._head(x).float()

    def _keys_values(self, encoded: torch.Tensor) -> list[torch.Tensor]:
        return [layer.keys_values(encoded) for layer in self._layers]

    def _step(self, rows: Sequence[RowInput]) -> StepInputs:
        counts = [len(row.tokens) for row in rows]
        ints = torch.int32
        ends = torch.tensor(counts).cumsum(0)
        audio = torch.stack([row.audio for row in rows]).repeat_interleave(
            torch.tensor(counts), dim=0
        )
        total = int(ends[-1])
        positions = torch.cat(
            [
                torch.arange(row.first, row.first + count)
                for row, count in zip(rows, counts, strict=True)
            ]
        )
        slots = [
            self._memory.slots(row.row, row.first, count)
            for row, count in zip(rows, counts, strict=True)
        ]
        step = StepInputs(
            tokens=torch.tensor([token for row in rows for token in row.tokens], dtype=ints),
            positions=positions,
            slots=torch.cat(slots),
            starts=functional.pad(ends, (1, 0)).to(ints),
            contexts=torch.tensor(
                [row.first + count for row, count in zip(rows, counts, strict=True)], dtype=ints
            ),
            tables=torch.stack([self._memory.tables[row.row] for row in rows]),
            audio_starts=torch.arange(total + 1, dtype=ints),
            audio_contexts=torch.full((total,), self._shape.source_positions, dtype=ints),
            audio_tables=audio,
            longest=max(counts),
        )
        return step if self._device.type == "cpu" else _moved(step, self._device)


def _moved(step: StepInputs, device: torch.device) -> StepInputs:
    moved = {
        field.name: getattr(step, field.name).to(device, non_blocking=True)
        for field in fields(step)
        if field.name not in ("longest", "workspace")
    }
    return replace(step, **moved)


class _Layer:
    """Attention to the text, attention to the audio, feed-forward."""

    def __init__(self, weights: WhisperWeights, shape: WhisperShape, name: str) -> None:
        width, inner = shape.width, shape.decoder_inner
        self._heads = shape.decoder_heads
        self._scale = (width // shape.decoder_heads) ** -0.5
        text = [f"{name}.self_attn.{part}_proj" for part in "qkv"]
        audio = [f"{name}.encoder_attn.{part}_proj" for part in "qkv"]
        self._text_norm = weights.norm(f"{name}.self_attn_layer_norm", width)
        self._qkv = weights.product(width, width, *text, unbiased=text[1:2])
        self._text_out = weights.product(width, width, f"{name}.self_attn.out_proj")
        self._audio_norm = weights.norm(f"{name}.encoder_attn_layer_norm", width)
        self._q = weights.product(width, width, audio[0])
        self._kv = weights.product(width, width, *audio[1:], unbiased=audio[1:2])
        self._audio_out = weights.product(width, width, f"{name}.encoder_attn.out_proj")
        self._inner_norm = weights.norm(f"{name}.final_layer_norm", width)
        self._up = weights.product(inner, width, f"{name}.fc1")
        self._down = weights.product(width, inner, f"{name}.fc2")

    def keys_values(self, encoded: torch.Tensor) -> torch.Tensor:
        """encoded (positions, width) to (positions, 2, heads, head width)."""
        return self._kv(encoded).view(len(encoded), 2, self._heads, -1)

    def __call__(
        self,
        x: torch.Tensor,
        step: StepInputs,
        text: tuple[torch.Tensor, torch.Tensor],
        audio: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x (N, width) to the same shape, and the audio queries, (N, heads, head width).

        Keys and values of the text are stored.
        """
        q, k, v = self._qkv(self._text_norm(x)).view(len(x), 3, self._heads, -1).unbind(1)
        store_kv(k, v, *text, step.slots)
        attended = paged_attention(
            q,
            *text,
            query_start=step.starts,
            context_len=step.contexts,
            block_table=step.tables,
            block_tokens=PAGE,
            scale=self._scale,
            max_query=step.longest,
            workspace=step.workspace,
        )
        x = x + self._text_out(attended.flatten(1))
        queries = self._q(self._audio_norm(x)).view(len(x), self._heads, -1)
        attended = paged_attention(
            queries,
            *audio,
            query_start=step.audio_starts,
            context_len=step.audio_contexts,
            block_table=step.audio_tables,
            block_tokens=PAGE,
            scale=self._scale,
            max_query=1,
            workspace=step.workspace,
        )
        x = x + self._audio_out(attended.flatten(1))
        return x + self._down(functional.gelu(self._up(self._inner_norm(x)))), queries
