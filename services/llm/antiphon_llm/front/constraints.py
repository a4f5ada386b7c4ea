"""Checks a bound on the output's form, and writes it as the engine compiles it.

What the engine alone can tell, that a grammar does not compile, comes back as the same kind of
error; what is wrong with a schema or an expression by itself is told here, with its place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.schema_gate import SchemaRefused, gate_schema
from antiphon_llm.front.schema_patterns import PatternUnsupported, whole_pattern
from antiphon_llm.messages import Constraint

SOURCE_BYTES = 256 * 1024
NESTING_LIMIT = 256
"""Brackets inside brackets, of any source: the compiler recurses over them."""
_REMEMBERED = 64
"""Checked constraints that are kept: with the largest sources 32 MiB."""


@dataclass(frozen=True, slots=True)
class ConstraintOptions:
    """What a caller asks of the output's form."""

    kind: str
    """json_schema, json_object, regex, choice, ebnf or structural_tag."""
    source: str = ""
    """Empty for json_object and choice."""
    values: tuple[str, ...] = ()
    """The texts of choice."""
    strict: bool = False
    """Refuse what cannot be enforced instead of naming it."""

    @property
    def nbytes(self) -> int:
        """UTF-8 bytes of the source."""
        return len(self.source.encode()) + sum(len(value.encode()) for value in self.values)


@dataclass(frozen=True, slots=True)
class CheckedConstraint:
    """A constraint for the engine."""

    constraint: Constraint
    notes: tuple[str, ...] = ()
    """What of it is not enforced, for the caller."""


@lru_cache(maxsize=_REMEMBERED)
def checked_constraint(options: ConstraintOptions, whitespace: int) -> CheckedConstraint:
    """Checks and rewrites; takes up to a second for the largest sources.

    Args:
        options: as the caller sent them.
        whitespace: longest run of white space in constrained JSON.

    Raises:
        InvalidArgument: naming the field and, of a schema, pointer and keyword.
    """
    field = f"constraint.{options.kind}"
    if options.nbytes > SOURCE_BYTES:
        raise InvalidArgument(
            f"{field} has {options.nbytes} bytes, allowed are {SOURCE_BYTES}",
            field=field,
            metadata={"limit": str(SOURCE_BYTES), "observed": str(options.nbytes)},
        )
    _check_nesting(field, options.source)
    if options.kind == "json_schema":
        return _schema(field, options)
    if options.kind == "structural_tag":
        return _structural_tag(field, options, whitespace)
    if options.kind == "choice":
        source = _choice(field, options.values)
    elif options.kind == "regex":
        source = _pattern(field, options.source)
    else:
        source = options.source
        if options.kind == "ebnf" and not source.strip():
            _refuse(field, "it is empty")
    return CheckedConstraint(Constraint(kind=options.kind, source=source))


def check_companions(*, ignore_eos: bool, min_tokens: int) -> None:
    """Refuses settings that a constraint leaves no room for.

    Raises:
        InvalidArgument: naming the setting.
    """
    if ignore_eos:
        raise InvalidArgument(
            "stop.ignore_eos does not go with constraint: the output could not end",
            field="stop.ignore_eos",
        )
    if min_tokens:
        raise InvalidArgument(
            f"sampling.min_tokens is {min_tokens}, allowed is 0 with constraint: it alone tells "
            "where the output may end",
            field="sampling.min_tokens",
        )


def _schema(field: str, options: ConstraintOptions) -> CheckedConstraint:
    schema = _json(field, options.source)
    text, notes = _gated(field, schema, options.strict)
    return CheckedConstraint(Constraint(kind="json_schema", source=text), notes)


def _gated(field: str, schema: Any, strict: bool) -> tuple[str, tuple[str, ...]]:
    try:
        gated = gate_schema(schema, strict=strict)
    except SchemaRefused as refused:
        raise InvalidArgument(
            f"{field}: {refused}",
            reason="UNSUPPORTED_OPTION" if refused.unsupported else "INVALID_SCHEMA",
            field=field,
            metadata={"pointer": refused.pointer, "keyword": refused.keyword},
        ) from None
    return gated.text, tuple(map(str, gated.ignored))


def _choice(field: str, values: Sequence[str]) -> str:
    if not values:
        _refuse(f"{field}.values", "it must have at least one text")
    seen: set[str] = set()
    for place, value in enumerate(values):
        if not value:
            _refuse(f"{field}.values[{place}]", "it must not be empty")
        if value in seen:
            _refuse(f"{field}.values[{place}]", f"{value[:80]!r} stands there twice")
        seen.add(value)
    return json.dumps(list(values), ensure_ascii=False)


def _pattern(field: str, pattern: str) -> str:
    try:
        return whole_pattern(pattern)
    except PatternUnsupported as unsupported:
        _refuse(field, f"the expression cannot be enforced: {unsupported}")


def _structural_tag(field: str, options: ConstraintOptions, whitespace: int) -> CheckedConstraint:
    tag = _json(field, options.source)
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        _refuse(field, "it must be an object with a format")
    notes: list[str] = []
    form = _checked_format(tag["format"], field, options.strict, whitespace, notes)
    source = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    return CheckedConstraint(Constraint(kind="structural_tag", source=source), tuple(notes))


def _checked_format(form: Any, field: str, strict: bool, whitespace: int, notes: list[str]) -> Any:
    """A format with its schemas passed through the gate, and their white space bounded."""
    if isinstance(form, list):
        return [_checked_format(item, field, strict, whitespace, notes) for item in form]
    if not isinstance(form, dict):
        return form
    kind = form.get("type")
    if kind == "json_schema":
        text, ignored = _gated(field, form.get("json_schema"), strict)
        notes += ignored
        if form.get("any_order"):
            _refuse(field, "any_order would let a name that repeats stand in for a required one")
        bound = form.get("max_whitespace_cnt") or max(1, whitespace)
        return {**form, "json_schema": json.loads(text), "max_whitespace_cnt": bound}
    if kind == "regex":
        return {**form, "pattern": _pattern(field, str(form.get("pattern", "")))}
    return {
        key: _checked_format(value, field, strict, whitespace, notes) for key, value in form.items()
    }


def _json(field: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        _refuse(field, f"it is not valid JSON: {error}")


def _check_nesting(field: str, source: str) -> None:
    depth = deepest = 0
    for character in source:
        if character in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    if deepest > NESTING_LIMIT:
        _refuse(field, f"its brackets are nested more than {NESTING_LIMIT} deep")


def _refuse(field: str, why: str) -> NoReturn:
    raise InvalidArgument(f"{field}: {why}", reason="INVALID_SCHEMA", field=field)
