"""What a row emits of the tokens that were drawn for it."""

from __future__ import annotations

from antiphon_llm.sampler.draw import Draw
from antiphon_llm.sampler.processors import TokenRefused
from antiphon_llm.sampler.row import SamplerRow

from .plan import PlannedRow


def advanced(row: PlannedRow, sampler: SamplerRow, draws: list[Draw]) -> list[Draw]:
    """What the row emits of its draws, after its sampler has followed them: nothing behind an
    end, and an error in place of a token that a rule refuses although its own mask let it pass."""
    for place, drawn in enumerate(draws):
        if drawn.error:
            return draws[: place + 1]
        try:
            sampler.advance(drawn.token)
        except TokenRefused as refused:
            return [*draws[:place], Draw(-1, error=str(refused), reason="GRAMMAR_DESYNC")]
        if drawn.token in row.request.stop_ids:
            return draws[: place + 1]
    return draws
