"""Reads settings from files, environment variables and flags into one nested mapping."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from antiphon_core.errors import InvalidArgument
from antiphon_core.settings_schema import (
    SettingField,
    leaves,
    suggestion,
    unknown_key_message,
)

SECTIONS = ("llm", "vocoder", "gateway", "admin", "edge")
"""The sections that a suite's file may hold; a service reads only its own."""


class ConfigError(InvalidArgument):
    """The configuration is wrong; the message is one line that names the key and its origin."""


@dataclass
class Sources:
    """Raw values by nested key, with the origin of each leaf by dotted path."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, path: Sequence[str], value: object, origin: str) -> None:
        """Sets a leaf; a later call wins over an earlier one."""
        node = self.values
        for part in path[:-1]:
            child = node.get(part)
            if not isinstance(child, dict):
                child = node[part] = {}
            node = child
        node[path[-1]] = value
        name = ".".join(path)
        for stale in [key for key in self.origins if key.startswith(name + ".")]:
            del self.origins[stale]
        self.origins[name] = origin

    def put_tree(self, tree: Mapping[str, Any], origin: str, prefix: tuple[str, ...] = ()) -> None:
        """Sets every leaf of a nested mapping."""
        for key, value in tree.items():
            path = (*prefix, str(key))
            if isinstance(value, Mapping) and value:
                self.put_tree(value, origin, path)
            else:
                self.put(path, value, origin)


def read_file(sources: Sources, path: Path, section: str) -> None:
    """Adds the file's section. A file without that section adds nothing.

    Raises:
        ConfigError: unreadable or malformed file, unknown section.
    """
    document = _parse(path)
    known = {*SECTIONS, section}
    for name, body in document.items():
        if name not in known:
            raise ConfigError(
                f"{path}: unknown section [{name}]" + suggestion(str(name), sorted(known)),
                field=str(name),
            )
        if body is not None and not isinstance(body, Mapping):
            raise ConfigError(f"{path}: [{name}] must be a table of settings", field=str(name))
    sources.put_tree(document.get(section) or {}, f"file {path}")


def read_environment(
    sources: Sources, model: type[BaseModel], section: str, environ: Mapping[str, str]
) -> None:
    """Adds ``ANTIPHON_<SECTION>_<FIELD>`` variables; ``__`` separates nested names.

    Raises:
        ConfigError: a variable of this section's prefix that names no field.
    """
    fields = {leaf.path: leaf for leaf in leaves(model)}
    for leaf in fields.values():
        if leaf.environment and leaf.environment in environ:
            value = _convert(leaf, environ[leaf.environment], leaf.environment)
            sources.put(leaf.path, value, f"environment {leaf.environment}")
    prefix = f"ANTIPHON_{section.upper()}_"
    for variable in sorted(environ):
        if not variable.startswith(prefix):
            continue
        path = tuple(variable[len(prefix) :].lower().split("__"))
        leaf = fields.get(path)
        if leaf is None:
            message = unknown_key_message(model, path, section)
            raise ConfigError(f"environment variable {variable}: {message}", field=".".join(path))
        sources.put(path, _convert(leaf, environ[variable], variable), f"environment {variable}")


def read_flags(
    sources: Sources, model: type[BaseModel], section: str, arguments: Sequence[str]
) -> None:
    """Adds ``--field value``, ``--field=value`` and bare boolean ``--field``.

    Raises:
        ConfigError: an unknown flag, a flag without its value, or a stray argument.
    """
    fields = {leaf.name: leaf for leaf in leaves(model)}
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if not argument.startswith("--"):
            raise ConfigError(f"unexpected argument {argument!r}; settings are --field value")
        flag, separator, text = argument.partition("=")
        name = flag[2:].replace("-", "_")
        leaf = fields.get(name)
        if leaf is None:
            message = unknown_key_message(model, name.split("."), section)
            raise ConfigError(f"flag {flag}: {message}", field=name)
        if not separator:
            if queue and not queue[0].startswith("--"):
                text = queue.pop(0)
            elif leaf.takes_bool:
                text = "true"
            else:
                raise ConfigError(f"flag {flag} needs a value", field=name)
        sources.put(leaf.path, _convert(leaf, text, flag), f"flag {flag}")


def _convert(leaf: SettingField, text: str, origin: str) -> object:
    """Text to a raw value: JSON for structures, commas for lists; pydantic does the rest."""
    stripped = text.strip()
    if leaf.optional and stripped.lower() in ("", "none", "null"):
        return None
    if leaf.takes_text:
        return text
    if stripped[:1] in ("[", "{"):
        try:
            return json.loads(stripped)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{origin}: not valid JSON: {error}", field=leaf.name) from None
    if leaf.takes_list:
        return [part.strip() for part in stripped.split(",") if part.strip()]
    return stripped


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read the configuration file {path}: {detail}") from None
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix in (".yaml", ".yml"):
            document = _parse_yaml(text)
        else:
            raise ConfigError(f"{path}: a configuration file ends in .toml, .yaml or .yml")
    except ValueError as error:
        raise ConfigError(f"{path}: {_one_line(str(error))}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: the file must hold sections, each a table of settings")
    return document


def _parse_yaml(text: str) -> Any:
    """Raises ValueError for malformed text, as ``tomllib`` does."""
    import yaml  # costs every other process 15 ms at its start

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _one_line(text: str) -> str:
    return " ".join(text.split())


def join_problems(problems: Iterable[str]) -> str:
    """Several problems as one line."""
    return "; ".join(problems)
