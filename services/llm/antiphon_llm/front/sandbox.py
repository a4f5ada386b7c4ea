"""A Jinja environment for chat templates that come with checkpoints: no escape, no endless work.

Templates see plain values and a few helpers, may not reach attributes or change what they are
given, and stop at bounds of time and size. Time is checked in every loop pass and call, since
a thread cannot be interrupted from outside.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_deadline: ContextVar[float] = ContextVar("template_deadline", default=float("inf"))

_TICK = "antiphon_tick"


class TemplateLimitError(Exception):
    """The template ran into the bound on time or size."""


class TemplateRefusal(Exception):
    """The template called ``raise_exception``: it does not accept this conversation."""


class _Generation(Extension):
    """``{% generation %}`` marks the model's part for training; here its body passes through."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment that compiles chat templates.

    Args:
        size_limit: characters of output, and of any text or list that a product makes.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, size_limit: int) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        self.size_limit = size_limit
        self.filters["tojson"] = to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals[_TICK] = _tick

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            tick = nodes.ExprStmt(
                nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None), lineno=loop.lineno
            )
            loop.body.insert(0, tick.set_lineno(loop.lineno))
        return tree

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Every call of a template passes here."""
        _tick()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuses products that only serve to fill the memory."""
        if operator == "**":
            raise TemplateLimitError("the operator ** is not allowed")
        for sequence, count in ((left, right), (right, left)):
            if (
                isinstance(sequence, str | list | tuple)
                and isinstance(count, int)
                and len(sequence) * count > self.size_limit
            ):
                raise TemplateLimitError(f"a product is larger than {self.size_limit} items")
        return super().call_binop(context, operator, left, right)


def render(
    template: jinja2.Template,
    variables: Mapping[str, Any],
    *,
    seconds: float,
    size_limit: int,
) -> str:
    """Renders within bounds.

    Raises:
        TemplateLimitError: a bound was passed.
        TemplateRefusal: the template refused the conversation.
        jinja2.TemplateError: the template failed.
    """
    token = _deadline.set(time.monotonic() + seconds)
    pieces: list[str] = []
    size = 0
    try:
        for piece in template.generate(**variables):
            size += len(piece)
            if size > size_limit:
                raise TemplateLimitError(f"the rendered text is longer than {size_limit}")
            pieces.append(piece)
            _tick()
    finally:
        _deadline.reset(token)
    return "".join(pieces)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _tick() -> None:
    if time.monotonic() > _deadline.get():
        raise TemplateLimitError("the template took too long")


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
