"""Tools and schemas, which chat and responses spell differently and mean alike."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from antiphon_core.errors import InvalidArgument

from antiphon_gateway.domain.generation import Constraint, ConstraintKind, ToolChoice, ToolMode
from antiphon_gateway.openai.common import MAX_SCHEMA_BYTES


def free_choice(mode: str | None, *, has_tools: bool, single: bool) -> ToolChoice | None:
    """The choice that names no tool: ``none``, ``auto`` (also None) or ``required``.

    Raises:
        InvalidArgument: a call is required and there is no tool.
    """
    if has_tools:
        return ToolChoice(ToolMode(mode or "auto"), single_call=single)
    if mode not in (None, "none", "auto"):
        raise no_tools()
    return None


def named_choice(name: str, offered: Collection[str], path: str, *, single: bool) -> ToolChoice:
    """Exactly one call of the tool of a name; raises InvalidArgument naming ``path``."""
    _require_known(name, offered, path)
    return ToolChoice(ToolMode.NAMED, name=name, single_call=single)


def allowed_choice(
    mode: str, names: Sequence[str], offered: Collection[str], path: str, *, single: bool
) -> ToolChoice:
    """Only the tools of these names may, or must, be called.

    Args:
        mode: ``auto`` or ``required``.
        names: the allowed ones.
        offered: all that the request brings.
        path: of a name, with ``{}`` for its index.
        single: at most one call.

    Raises:
        InvalidArgument: naming the path of an unknown tool.
    """
    for index, name in enumerate(names):
        _require_known(name, offered, path.format(index))
    return ToolChoice(ToolMode(mode), allowed=tuple(names), single_call=single)


def no_tools() -> InvalidArgument:
    """The refusal of a choice among no tools."""
    return InvalidArgument("tool_choice needs tools", field="tool_choice")


def schema_constraint(schema: msgspec.Raw, path: str, *, strict: bool | None) -> Constraint:
    """The output matches a schema; raises InvalidArgument naming ``path``."""
    text = schema_text(schema, path)
    if not text:
        raise InvalidArgument(f"{path} is required", reason="MISSING_FIELD", field=path)
    return Constraint(ConstraintKind.JSON_SCHEMA, text, strict=bool(strict))


def schema_text(raw: msgspec.Raw, path: str) -> str:
    """The JSON text of a schema as it was sent; empty for null.

    Raises:
        InvalidArgument: it is too large, or no object.
    """
    data = bytes(raw)
    if len(data) > MAX_SCHEMA_BYTES:
        raise InvalidArgument(
            f"{path} has {len(data)} bytes; at most {MAX_SCHEMA_BYTES} are allowed",
            reason="TOO_LARGE",
            field=path,
            metadata={"limit": str(MAX_SCHEMA_BYTES), "observed": str(len(data))},
        )
    text = data.decode()
    if text == "null":
        return ""
    if not text.startswith("{"):
        raise InvalidArgument(f"{path} must be a JSON schema object", field=path)
    return text


def _require_known(name: str, offered: Collection[str], path: str) -> None:
    if name not in offered:
        raise InvalidArgument(
            f"{path}: no tool named {name!r} is offered", field=path, allowed=sorted(offered)
        )
