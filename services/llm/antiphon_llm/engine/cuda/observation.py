"""What a drafter is shown of the steps: the model's hidden states, copied while they last."""

from __future__ import annotations

from typing import Protocol

import torch

from antiphon_llm.engine.plan import StepPlan
from antiphon_llm.engine.runner import StepResult
from antiphon_llm.speculation.drafter import Drafter

from .graphs import DecodeShape


class TappedModel(Protocol):
    """A model that keeps what drafters read."""

    def residual(self, tokens: int) -> torch.Tensor:
        """(N, H) of the last forward before the final norm; valid until the next."""
        ...

    def tapped(self, tokens: int) -> dict[int, torch.Tensor]:
        """(N, H) by tapped layer, of the last forward; valid until the next."""
        ...


class Observation:
    """The states of one step in the plan's order: decode rows, then prompts.

    Copies, for the step after it may run before its draws are known.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._hidden: list[torch.Tensor] = []
        self._taps: list[dict[int, torch.Tensor]] = []

    def note_decode(self, model: TappedModel, shape: DecodeShape, rows: int, width: int) -> None:
        """Keeps what a decode step at ``shape`` left of ``rows`` rows of ``width`` tokens."""

        def live(states: torch.Tensor) -> torch.Tensor:
            return states.view(shape.rows, shape.width, -1)[:rows, :width].flatten(0, 1)

        self._note(
            live(model.residual(shape.tokens)) if self._drafter.wants_hidden else None,
            {layer: live(states) for layer, states in self._tapped(model, shape.tokens).items()},
        )

    def note_prompts(self, model: TappedModel, tokens: int) -> None:
        """Keeps what a prefill of so many tokens left."""
        self._note(
            model.residual(tokens) if self._drafter.wants_hidden else None,
            self._tapped(model, tokens),
        )

    def tell(self, plan: StepPlan, result: StepResult) -> None:
        """Shows the step to the drafter; a failure there is no failure of the step."""
        hidden = torch.cat(self._hidden) if self._hidden else None
        layers = self._taps[0] if self._taps else {}
        taps = {layer: torch.cat([part[layer] for part in self._taps]) for layer in layers}
        try:
            self._drafter.observe(plan, hidden, taps, result)
        except Exception as error:
            result.drafter_error = error

    def _tapped(self, model: TappedModel, tokens: int) -> dict[int, torch.Tensor]:
        return model.tapped(tokens) if self._drafter.tap_layers else {}

    def _note(self, hidden: torch.Tensor | None, taps: dict[int, torch.Tensor]) -> None:
        if hidden is not None:
            self._hidden.append(hidden.clone())
        self._taps.append({layer: states.clone() for layer, states in taps.items()})
