"""Looks up fields of nested settings models: paths, documentation, close matches."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.fields import FieldInfo

Scope = typing.Literal["live", "next_request", "drained", "restart"]
"""When a changed value takes effect."""


@dataclass(frozen=True)
class SettingField:
    """One leaf of a settings model."""

    path: tuple[str, ...]
    annotation: object
    doc: str
    scope: Scope
    secret: bool
    environment: str
    """A further environment name besides the derived one; empty for none."""

    @property
    def name(self) -> str:
        """Dotted path, as in the configuration file."""
        return ".".join(self.path)

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def takes_list(self) -> bool:
        """Whether the value is a sequence."""
        return any(_origin(option) in (list, tuple, set) for option in _options(self.annotation))

    @property
    def takes_bool(self) -> bool:
        """Whether the bare flag means true."""
        return bool in _options(self.annotation)

    @property
    def takes_text(self) -> bool:
        """Whether a plain string is a valid value, so that it must not be parsed further."""
        return str in _options(self.annotation)

    @property
    def optional(self) -> bool:
        """Whether the field may be None."""
        return type(None) in _options(self.annotation)


def nested_model(annotation: object) -> type[BaseModel] | None:
    """The model class of an annotation such as ``Model`` or ``Model | None``."""
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def leaves(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[SettingField]:
    """Every leaf field of the model and of the models nested in it, in declaration order."""
    for name, info in model.model_fields.items():
        path = (*prefix, name)
        nested = nested_model(info.annotation)
        if nested is not None:
            yield from leaves(nested, path)
        else:
            yield _leaf(path, info)


def unknown_key_message(model: type[BaseModel], path: Sequence[str], section: str) -> str:
    """Says that the last part of the path is no field, with close matches or all fields."""
    owner: type[BaseModel] | None = model
    for part in path[:-1]:
        info = owner.model_fields.get(part) if owner is not None else None
        owner = nested_model(info.annotation) if info is not None else None
    known = list(owner.model_fields) if owner is not None else []
    return f"unknown key {path[-1]!r} in {section_name(section, path[:-1])}" + suggestion(
        path[-1], known
    )


def section_name(section: str, path: Sequence[str] = ()) -> str:
    """``[llm.engine]`` for the section llm and the path (engine,)."""
    return "[" + ".".join((section, *path)) + "]"


def suggestion(name: str, known: Sequence[str]) -> str:
    """Names close to the wrong one, else all known ones."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(repr(match) for match in close) + "?"
    return "; known: " + ", ".join(sorted(known)) if known else ""


def _leaf(path: tuple[str, ...], info: FieldInfo) -> SettingField:
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    options = _options(info.annotation)
    secret = bool(extra.get("secret")) or SecretStr in options or SecretBytes in options
    return SettingField(
        path=path,
        annotation=info.annotation,
        doc=info.description or "",
        scope=typing.cast(Scope, extra.get("scope", "restart")),
        secret=secret,
        environment=str(extra.get("environment", "")),
    )


def _origin(annotation: object) -> object:
    return typing.get_origin(annotation) or annotation


def _options(annotation: object) -> tuple[object, ...]:
    """The members of a union, or the annotation itself; Annotated is unwrapped."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return tuple(
            option for member in typing.get_args(annotation) for option in _options(member)
        )
    if origin is typing.Annotated:
        return _options(typing.get_args(annotation)[0])
    return (annotation,)
