"""Decode steps as recorded programs: the blocks' kernel calls without Python between them.

A performance subset of the one forward path. A program is what that path called when it first
ran a step of so many rows and tokens; every other step, and every step whose memory is not the
recorded one, takes the path itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from antiphon_core.logs import get_logger
from antiphon_kernels.cpu.program import Program, ProgramFault, record

from .workspace import FIXED_TOKENS

if TYPE_CHECKING:
    from .block import AttentionMeta, CacheView

_log = get_logger(__name__)

WIDEST_ROW = 16
"""Tokens of a row with drafts at most."""
RECORDED = "recorded"
UNSTABLE = "memory moved"
STALE = "kernels or threads changed"


@dataclass(frozen=True, slots=True)
class _Recorded:
    program: Program | None
    """None for a step that cannot be recorded; ``reason`` says why."""
    reason: str
    addresses: tuple[int, ...]
    views: Sequence[CacheView]
    """Kept, so that the caches' addresses stay taken."""


def recurs(tokens: int, rows: int, max_query: int) -> bool:
    """Whether steps of this shape come again and again: rows of one width, without drafts or
    with. Short prompts and pieces of such a shape may have a program too."""
    return tokens <= FIXED_TOKENS and max_query <= WIDEST_ROW and tokens == rows * max_query


class DecodePrograms:
    """One program for each number of rows and tokens, and another one with adapters.

    Attributes:
        replays: steps that a program ran.
        eager: steps that recur and took the path itself, by reason. A shape seen for the first
            time counts as ``recorded``; steps of other shapes are not counted.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.replays = 0
        self.eager: dict[str, int] = {}
        self._recorded: dict[tuple[int, int, bool], _Recorded] = {}

    @property
    def fallbacks(self) -> dict[str, int]:
        """Decode steps without a program that should have had one, by reason."""
        return {
            f"decode_program: {reason}": count
            for reason, count in self.eager.items()
            if reason != RECORDED
        }

    def run(
        self,
        positions: torch.Tensor,
        meta: AttentionMeta,
        views: Sequence[CacheView],
        blocks: Callable[[], None],
        adapters: torch.Tensor | None = None,
    ) -> None:
        """Does what ``blocks`` does, through a program where one fits; ``adapters`` are the
        slots of the tokens' own, where any has one.

        ``blocks`` reads and writes nothing but weights, fixed workspace and the arguments.
        Whatever it raises for bad data is raised from a program's step too.
        """
        tokens, rows = positions.shape[0], meta.context_len.shape[0]
        if not self.enabled or not recurs(tokens, rows, meta.max_query):
            blocks()
            return
        shape = tokens, rows, adapters is not None
        addresses = _addresses(positions, meta, adapters)
        known = self._recorded.get(shape)
        if known is None:
            self._count(RECORDED)
            program, reason = record(blocks)
            self._recorded[shape] = _Recorded(program, reason, addresses, views)
            if program is None:
                _log.warning("decode_program_refused", rows=rows, tokens=tokens, reason=reason)
        elif known.addresses != addresses or known.views is not views:
            self._forget(shape, UNSTABLE, blocks)
        elif known.program is None:
            self._count(known.reason)
            blocks()
        elif not known.program.current:
            self._forget(shape, STALE, blocks)
        else:
            self._replay(known.program, blocks)

    def _replay(self, program: Program, blocks: Callable[[], None]) -> None:
        try:
            program.replay()
        except ProgramFault:
            # Data is refused in the first block, which leaves the residual stream as it was:
            # the path itself meets the same fault and names it.
            blocks()
            raise
        self.replays += 1

    def _forget(
        self, shape: tuple[int, int, bool], reason: str, blocks: Callable[[], None]
    ) -> None:
        """Takes the path itself; the next step of this shape is recorded anew."""
        del self._recorded[shape]
        self._count(reason)
        blocks()

    def _count(self, reason: str) -> None:
        self.eager[reason] = self.eager.get(reason, 0) + 1


def _addresses(
    positions: torch.Tensor, meta: AttentionMeta, adapters: torch.Tensor | None
) -> tuple[int, ...]:
    """Where a step's metadata lies, and the two numbers of it that calls take by value."""
    return (
        positions.data_ptr(),
        meta.query_start.data_ptr(),
        meta.context_len.data_ptr(),
        meta.block_table.data_ptr(),
        meta.write_slot.data_ptr(),
        meta.block_table.shape[1],
        meta.block_tokens,
        0 if adapters is None else adapters.data_ptr(),
    )
