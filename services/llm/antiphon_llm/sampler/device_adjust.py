"""Penalties and logit bias on the device, in plain torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from antiphon_kernels.sample import RowSettings

from antiphon_llm.messages import Sampling

from .row import SamplerRow


def penalised(sampling: Sampling) -> bool:
    """Whether a draw depends on the tokens before it."""
    return (
        sampling.repetition_penalty != 1.0
        or sampling.frequency_penalty != 0.0
        or sampling.presence_penalty != 0.0
    )


@dataclass(frozen=True, slots=True)
class AdjustedRow:
    """A row whose logits are changed before its draws."""

    place: int
    """Of its first position among all positions of the step."""
    width: int
    """Positions."""
    slot: int
    """Where its penalty history is kept, -1 without penalties."""
    sampler: SamplerRow


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A history to be set from tokens that the host knows."""

    slot: int
    prompt: list[int]
    outputs: list[int]

    @classmethod
    def of(cls, owner: HistoryOwner) -> Rebuild:
        """From all that the host knows of the owner."""
        start = owner.prompt_length
        return cls(owner.row, owner.tokens[:start], owner.tokens[start:])


class HistoryOwner(Protocol):
    """The request that a history belongs to."""

    tokens: list[int]
    prompt_length: int
    row: int


class PenaltyState:
    """Token counts of the slots' requests: outputs counted, the prompt's tokens marked.

    Two states, because repetition sees the prompt and presence and frequency do not. A slot
    is a row of the block tables, so that nothing moves when the batch's order changes.
    """

    def __init__(self, slots: int, vocabulary: int, device: torch.device) -> None:
        self._counts = torch.zeros((slots, vocabulary), dtype=torch.int32, device=device)
        self._prompt = torch.zeros((slots, vocabulary), dtype=torch.bool, device=device)
        self._next: dict[int, tuple[SamplerRow, int]] = {}
        """By slot: whose history it holds, and the position of the next token to be counted."""

    @staticmethod
    def predict_bytes(slots: int, vocabulary: int) -> int:
        """Bytes of the two states."""
        return slots * vocabulary * 5

    def follow(
        self, owner: HistoryOwner, sampler: SamplerRow, position: int, *, counts: bool
    ) -> Rebuild | list[int]:
        """Notes that the owner's tokens from ``position`` on will be drawn; with ``counts`` it is
        one, and counted as it is drawn.

        Returns the cells to be raised first, for tokens of windows that were accepted since, or
        what the slot must be set to, when it holds another history: that of another request,
        or one that counted a token which was dropped with a lost row.
        """
        slot = owner.row
        holder, counted = self._next.get(slot, (None, 0))
        self._next[slot] = sampler, position + counts
        if holder is sampler and counted == position:
            return []
        if position != len(owner.tokens):
            raise RuntimeError(
                f"history of slot {owner.row} is needed at position {position}, "
                f"but the host knows {len(owner.tokens)} tokens"
            )
        if holder is sampler and owner.prompt_length <= counted < position:
            first = slot * self._counts.shape[1]
            return [first + token for token in owner.tokens[counted:position]]
        return Rebuild.of(owner)

    def forget(self, slots: Iterable[int]) -> None:
        """Nothing is known of these slots any more."""
        for slot in slots:
            self._next.pop(slot, None)

    def fold(self, cells: torch.Tensor) -> None:
        """Raises cells, int64 (n), of the flattened counts by one each."""
        _raise(self._counts, cells)

    def rebuild(self, order: Rebuild) -> None:
        """Sets a slot's history."""
        device = self._counts.device
        self._prompt[order.slot].zero_()[torch.tensor(order.prompt, device=device)] = True
        outputs = torch.tensor(order.outputs, dtype=torch.int64, device=device)
        ones = torch.ones(len(outputs), dtype=torch.int32, device=device)
        self._counts[order.slot].zero_().scatter_add_(0, outputs, ones)

    def count(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Counts one drawn token, int32 (n), for each slot, int64 (n)."""
        _raise(self._counts, slots * self._counts.shape[1] + tokens)

    def apply(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        repetition: torch.Tensor,
        frequency: torch.Tensor,
        presence: torch.Tensor,
        ahead: torch.Tensor,
    ) -> torch.Tensor:
        """Penalised fp32 logits (n, V); the penalties are fp32 (n, 1), slots int64 (n).

        ``ahead``, int64 (m), are cells of the counts (n, V) that drafts before a position raise.
        """
        counts = self._counts[slots]
        _raise(counts, ahead)
        counted = counts > 0
        scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(counted | self._prompt[slots], scaled, logits)
        logits = logits - frequency * counts.float()
        return logits - presence * counted.float()


def _raise(counts: torch.Tensor, cells: torch.Tensor) -> None:
    """Adds one to cells, int64 (n), of contiguous counts, int32 (m, V); a cell may recur."""
    ones = torch.ones(cells.shape, dtype=counts.dtype, device=counts.device)
    counts.view(-1).scatter_add_(0, cells, ones)


class Adjustment:
    """What is done to the logits of certain positions, uploaded once for many steps."""

    def __init__(self, rows: Sequence[AdjustedRow], settings: RowSettings) -> None:
        """``settings`` are the whole step's; those of the rows' positions are taken from them."""
        device = settings.buffer.device
        self.rows = list(rows)
        positions = [(row, offset) for row in rows for offset in range(row.width)]
        self.settings = RowSettings.allocate(len(positions), device)
        self.index = torch.tensor([row.place + offset for row, offset in positions], device=device)
        """int64 (n), places in the step."""
        for mine, all_rows in zip(self.settings.columns(), settings.columns(), strict=True):
            mine.copy_(all_rows[self.index])
        counted = [
            (place, row, offset) for place, (row, offset) in enumerate(positions) if row.slot >= 0
        ]
        self._places = torch.tensor(
            [place for place, _, _ in counted], dtype=torch.int64, device=device
        )
        self._slots = torch.tensor(
            [row.slot for _, row, _ in counted], dtype=torch.int64, device=device
        )
        self._penalties = torch.tensor(
            [
                (s.repetition_penalty, s.frequency_penalty, s.presence_penalty)
                for s in (row.sampler.sampling for _, row, _ in counted)
            ],
            dtype=torch.float32,
            device=device,
        ).view(-1, 3)
        # Position p of a window follows what its places 1 .. p feed.
        self._ahead_in, self._ahead_fed = _pairs(
            [
                (at, row.place + fed)
                for at, (_, row, offset) in enumerate(counted)
                for fed in range(1, offset + 1)
            ],
            device,
        )
        bias = [
            (place, token, value)
            for place, (row, _) in enumerate(positions)
            for token, value in row.sampler.sampling.logit_bias.items()
        ]
        self._bias_at = _pairs([(place, token) for place, token, _ in bias], device)
        self._bias = torch.tensor(
            [value for _, _, value in bias], dtype=torch.float32, device=device
        )

    def apply(self, logits: torch.Tensor, state: PenaltyState, fed: torch.Tensor) -> None:
        """Changes fp32 logits (n, V) in place: penalties, then bias. ``fed``, int32 (N), are the
        ids that the step's places feed."""
        if len(self._slots):
            repetition, frequency, presence = self._penalties.split(1, dim=1)
            ahead = self._ahead_in * logits.shape[1] + fed[self._ahead_fed]
            logits[self._places] = state.apply(
                logits[self._places], self._slots, repetition, frequency, presence, ahead
            )
        if len(self._bias):
            logits.index_put_(self._bias_at, self._bias, accumulate=True)

    def count(self, state: PenaltyState, tokens: torch.Tensor) -> None:
        """Counts the tokens, int32 (n), of rows with penalties that drew one each."""
        if len(self._slots):
            state.count(self._slots, tokens[self._places])

    def move(self, settings: RowSettings) -> None:
        """Takes over where each draw stands, which alone changes while the rows are the same."""
        self.settings.position.copy_(settings.position[self.index])


def _pairs(pairs: list[tuple[int, int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, token) pairs as two int64 index tensors."""
    table = torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2)
    return table[:, 0], table[:, 1]
