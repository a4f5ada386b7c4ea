"""Penalties, logit bias and barred end ids on the device, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
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
    """A row whose logits are changed before its draw."""

    index: int
    """Place in the batch."""
    slot: int
    """Where its penalty history is kept, -1 without penalties."""
    sampler: SamplerRow
    barred: bool
    """Whether end ids are ruled out: fewer than ``min_tokens`` tokens were drawn."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A history to be set from tokens that the host knows."""

    slot: int
    prompt: list[int]
    outputs: list[int]


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
        """By slot: whose history it holds, and the position of the next token it expects."""

    @staticmethod
    def predict_bytes(slots: int, vocabulary: int) -> int:
        """Bytes of the two states."""
        return slots * vocabulary * 5

    def follow(self, owner: HistoryOwner, sampler: SamplerRow, position: int) -> Rebuild | None:
        """Notes that the owner's token at ``position`` will be drawn and counted.

        Returns what the slot must be set to first, when it holds another history: that of
        another request, or one that counted a token which was dropped with a lost row.
        """
        expected = self._next.get(owner.row)
        self._next[owner.row] = sampler, position + 1
        if expected is not None and expected[0] is sampler and expected[1] == position:
            return None
        if position != len(owner.tokens):
            raise RuntimeError(
                f"history of slot {owner.row} is needed at position {position}, "
                f"but the host knows {len(owner.tokens)} tokens"
            )
        start = owner.prompt_length
        return Rebuild(owner.row, owner.tokens[:start], owner.tokens[start:])

    def rebuild(self, order: Rebuild) -> None:
        """Sets a slot's history."""
        device = self._counts.device
        self._prompt[order.slot].zero_()[torch.tensor(order.prompt, device=device)] = True
        outputs = torch.tensor(order.outputs, dtype=torch.int64, device=device)
        ones = torch.ones(len(outputs), dtype=torch.int32, device=device)
        self._counts[order.slot].zero_().scatter_add_(0, outputs, ones)

    def count(self, slots: torch.Tensor, tokens: torch.Tensor) -> None:
        """Counts one drawn token, int32 (n), for each slot, int64 (n)."""
        one = torch.ones((), dtype=torch.int32, device=tokens.device)
        self._counts.index_put_((slots, tokens.long()), one, accumulate=True)

    def apply(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        repetition: torch.Tensor,
        frequency: torch.Tensor,
        presence: torch.Tensor,
    ) -> torch.Tensor:
        """Penalised fp32 logits (n, V); the penalties are fp32 (n, 1), slots int64 (n)."""
        counts = self._counts[slots]
        counted = counts > 0
        scaled = torch.where(logits > 0, logits / repetition, logits * repetition)
        logits = torch.where(counted | self._prompt[slots], scaled, logits)
        logits = logits - frequency * counts.float()
        return logits - presence * counted.float()


class Adjustment:
    """What is done to the logits of certain rows, uploaded once for many steps."""

    def __init__(self, rows: Sequence[AdjustedRow], settings: RowSettings) -> None:
        """``settings`` are the whole batch's; those of the rows are taken from them."""
        device = settings.buffer.device
        self.rows = list(rows)
        self.settings = RowSettings.allocate(len(rows), device)
        self.index = torch.tensor([row.index for row in rows], device=device)
        """int64 (n), places in the batch."""
        for mine, all_rows in zip(self.settings.columns(), settings.columns(), strict=True):
            mine.copy_(all_rows[self.index])
        counted = [(place, row) for place, row in enumerate(rows) if row.slot >= 0]
        self._places = torch.tensor(
            [place for place, _ in counted], dtype=torch.int64, device=device
        )
        self._slots = torch.tensor(
            [row.slot for _, row in counted], dtype=torch.int64, device=device
        )
        self._penalties = torch.tensor(
            [
                (s.repetition_penalty, s.frequency_penalty, s.presence_penalty)
                for s in (row.sampler.sampling for _, row in counted)
            ],
            dtype=torch.float32,
            device=device,
        ).view(-1, 3)
        bias = [
            (place, token, value)
            for place, row in enumerate(rows)
            for token, value in row.sampler.sampling.logit_bias.items()
        ]
        self._bias_at = _pairs([(place, token) for place, token, _ in bias], device)
        self._bias = torch.tensor(
            [value for _, _, value in bias], dtype=torch.float32, device=device
        )
        self._barred_at = _pairs(
            [
                (place, int(token))
                for place, row in enumerate(rows)
                if row.barred
                for token in row.sampler.end_ids
            ],
            device,
        )

    def apply(self, logits: torch.Tensor, state: PenaltyState) -> None:
        """Changes fp32 logits (n, V) in place: penalties, bias, barred ids."""
        if len(self._slots):
            repetition, frequency, presence = self._penalties.split(1, dim=1)
            logits[self._places] = state.apply(
                logits[self._places], self._slots, repetition, frequency, presence
            )
        if len(self._bias):
            logits.index_put_(self._bias_at, self._bias, accumulate=True)
        if len(self._barred_at[0]):
            logits[self._barred_at] = -torch.inf

    def count(self, state: PenaltyState, tokens: torch.Tensor) -> None:
        """Counts the tokens, int32 (n), that were drawn for rows with penalties."""
        if len(self._slots):
            state.count(self._slots, tokens[self._places])

    def move(self, settings: RowSettings) -> None:
        """Takes over the rows' positions, which alone change while the rows stay the same."""
        self.settings.position.copy_(settings.position[self.index])


def _pairs(pairs: list[tuple[int, int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(row, token) pairs as two int64 index tensors."""
    table = torch.tensor(pairs, dtype=torch.int64, device=device).view(-1, 2)
    return table[:, 0], table[:, 1]
