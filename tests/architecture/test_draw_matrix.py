"""Every rule over a draw at every place that draws: applied, refused or not applicable, proven.

Rows are the processors of the registry and the knobs of a request, columns the functions that
call the draw (or take a largest logit themselves); both are found in the code, so a new one has
no cell until someone says what holds there and which test shows it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import antiphon_llm
import pytest
from antiphon_llm.messages import Sampling
from antiphon_llm.sampler.processors import REGISTRY

PACKAGE = Path(antiphon_llm.__file__).parent
TESTS = Path(__file__).resolve().parents[1]
ENTRIES = {"draw_windows", "draw", "pick", "sample"}
"""Functions that draw."""
MODULES = {"antiphon_llm.sampler.draw", "draw", "antiphon_kernels.sample"}
"""Where they are imported from."""
RULE = "sampler/draw.py"
"""The rule itself; its functions are no callers of it."""


class Cell(NamedTuple):
    kind: Literal["Applied", "Refused", "NotApplicable"]
    proof: str
    """``file::test`` below ``tests/unit``."""


WINDOWS = "llm_engine/test_windows.py::test_no_draft_and_no_loss_changes_a_token"
SCORES = (
    "llm_engine/test_windows.py::"
    "test_log_probabilities_are_those_of_the_raw_logits_of_each_position"
)
ALONE = "llm_engine/test_windows.py::test_a_row_alone_draws_what_it_draws_among_others"
DEVICE = (
    "llm_engine/test_device_sampler.py::test_windows_draw_what_the_host_draws_position_by_position"
)
SLATES = "llm_engine/test_device_sampler.py::test_tokens_and_scores_are_the_host_s_in_any_slate"
GUESSES = "llm_engine/test_windows.py::test_a_guess_from_the_target_s_logits_is_its_draw"
SAME_TEXT = "llm_engine/test_drafters.py::test_drafting_changes_no_token"
GRAMMAR = (
    "llm_engine/test_structured.py::"
    "test_a_window_rules_each_position_by_the_drafts_before_it_and_leaves_no_trace"
)
ORDERED_STOP = "llm_engine/test_structured.py::test_an_ordered_stop_ends_the_output_anywhere"
MODALITY = "llm_engine/test_processors.py::test_a_modality_that_was_not_asked_for_is_barred"
FORCED_STOP = (
    "llm_engine/test_processors.py::test_a_forced_stop_leaves_the_end_alone_possible_over_any_mask"
)
UNTOUCHED = (
    "llm_engine/test_windows.py::test_a_row_is_untouched_only_where_no_rule_can_change_its_best"
)
ENDS = "llm_engine/test_engine.py::test_end_of_text_and_ignoring_it"
PROMPT_SCORES = (
    "llm_engine/test_engine.py::test_prompt_scores_are_the_same_whole_chunked_and_preempted"
)
DEPTHS = "llm_engine/test_speculation.py::test_a_deeper_draft_than_the_engine_s_is_refused"

CHOICE = ("temperature", "top_k", "top_p", "min_p", "seed")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
RULES = (
    *("allowed_token_ids", "banned_token_ids", "min_tokens"),
    *("no_repeat_ngram_size", "no_repeat_ngram_window", "constraint", "reasoning", "speech"),
    *(f"processor {kind}" for kind in ("token_ids", "min_tokens", "ngram_block", "modality",
                                       "grammar", "thinking", "forced_stop")),
)  # fmt: skip
LENGTH = ("max_tokens", "stop_token_ids", "ignore_eos")
SEEDED = "llm_engine/test_residual.py::test_a_seed_of_the_caller_s_keeps_the_plain_text"
OTHERS = {"prompt_logprobs": PROMPT_SCORES, "draft_depth": DEPTHS, "seeded": SEEDED}
"""They concern no draw, and why."""


def _column(
    choice: Cell, penalties: Cell, rules: Cell, scores: Cell, **single: Cell
) -> dict[str, Cell]:
    """One site's cells by group; ``single`` names rows with a proof of their own."""
    cells = dict.fromkeys(CHOICE, choice) | dict.fromkeys(PENALTIES, penalties)
    cells |= dict.fromkeys(RULES, rules) | {"logprobs": scores}
    cells |= dict.fromkeys(LENGTH, Cell("NotApplicable", ENDS))
    cells |= {row: Cell("NotApplicable", proof) for row, proof in OTHERS.items()}
    return cells | {name.replace("processor_", "processor "): cell for name, cell in single.items()}


def _applied(proof: str) -> Cell:
    return Cell("Applied", proof)


def _not(proof: str) -> Cell:
    return Cell("NotApplicable", proof)


_OWN = {
    "processor_grammar": _applied(GRAMMAR),
    "constraint": _applied(GRAMMAR),
    "speech": _applied(MODALITY),
    "processor_modality": _applied(MODALITY),
    "processor_forced_stop": _applied(FORCED_STOP),
}
MATRIX: dict[str, dict[str, Cell]] = {
    "engine/cpu_runner.py CpuRunner._draw_together": _column(
        _applied(WINDOWS), _applied(WINDOWS), _applied(WINDOWS), _applied(SCORES), **_OWN
    ),
    # The same function for one row, after a failure of all together.
    "engine/cpu_runner.py _draw_alone": _column(
        _applied(ALONE), _applied(ALONE), _applied(ALONE), _applied(ALONE)
    ),
    # What a graph records. Rows that need more are drawn again by the two below.
    "sampler/device.py DeviceSampler.draw": _column(
        _applied(SLATES), _not(DEVICE), _not(DEVICE), _not(DEVICE)
    ),
    "sampler/device.py DeviceSampler.finish": _column(
        _applied(DEVICE), _not(DEVICE), _applied(DEVICE), _applied(DEVICE)
    ),
    "sampler/device.py DeviceSampler._draw_adjusted": _column(
        _applied(DEVICE), _applied(DEVICE), _applied(DEVICE), _not(DEVICE)
    ),
    # Runs the kernels once at boot; nothing it draws is read.
    "sampler/device.py DeviceSampler.warm": _column(
        _not(SLATES), _not(SLATES), _not(SLATES), _not(SLATES)
    ),
    # Proposals: the target's draw decides, these only have to guess it.
    "speculation/guesses.py Guesses._one": _column(
        _applied(GUESSES), _applied(GUESSES), _applied(GUESSES), _not(SAME_TEXT)
    ),
    # The largest logit on the device, for rows that no rule touches.
    "speculation/guesses.py Guesses.draw": _column(
        _not(UNTOUCHED), _not(UNTOUCHED), _not(UNTOUCHED), _not(SAME_TEXT)
    ),
}  # fmt: skip


def found_rows() -> set[str]:
    """Every processor and every knob."""
    return {*Sampling.__struct_fields__, *(f"processor {kind.name}" for kind in REGISTRY)}


def found_columns() -> set[str]:
    """Every function that draws: calls an entry, or takes the largest of logits by itself."""
    return {
        f"{path.relative_to(PACKAGE)} {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if str(path.relative_to(PACKAGE)) != RULE
        for name in _drawing(path)
    }


def _drawing(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if alias.name in ENTRIES
    }
    picks = path.parent.name in ("engine", "cuda", "speculation")
    for name, function in _functions(tree):
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            called = node.func
            if (isinstance(called, ast.Name) and called.id in imported) or (
                picks and ast.unparse(called).endswith("logits.argmax")
            ):
                yield name


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    yield f"{node.name}.{item.name}", item


def test_every_place_that_draws_has_a_column() -> None:
    assert found_columns() == set(MATRIX)


@pytest.mark.parametrize("column", MATRIX)
def test_every_rule_has_a_cell(column: str) -> None:
    assert set(MATRIX[column]) == found_rows()


def proofs() -> set[str]:
    return {cell.proof for column in MATRIX.values() for cell in column.values()}


@pytest.mark.parametrize("proof", sorted(proofs()))
def test_every_proof_is_a_test(proof: str) -> None:
    path, _, name = proof.partition("::")
    tree = ast.parse((TESTS / "unit" / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_a_proof_that_a_knob_is_applied_speaks_of_it() -> None:
    silent = [
        f"{column}: {row} by {cell.proof}"
        for column, cells in MATRIX.items()
        for row, cell in cells.items()
        if cell.kind == "Applied" and not row.startswith("processor ")
        and row not in (TESTS / "unit" / cell.proof.partition("::")[0]).read_text()
    ]  # fmt: skip
    assert not silent
