"""Typed configuration of a service: defaults < file < environment < flags.

This is the only module that reads the process environment. A service declares a frozen
``Settings`` class; unknown names fail wherever they stand.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from antiphon_core.settings_schema import Scope, leaves, section_name, unknown_key_message
from antiphon_core.settings_sources import (
    SECTIONS,
    ConfigError,
    Sources,
    join_problems,
    read_environment,
    read_file,
    read_flags,
)

__all__ = [
    "BOOT_REFUSED",
    "SECTIONS",
    "ConfigError",
    "SettingValue",
    "Settings",
    "load_settings",
    "process_environment",
    "setting",
    "settings_from_command_line",
]

BOOT_REFUSED = 71
"""Exit status of a process that refused to start."""


@dataclass(frozen=True)
class SettingValue:
    """One setting with its governing value and where that value came from."""

    name: str
    value: object
    """JSON-compatible; ``***`` for a secret that is set."""
    origin: str
    """``default``, ``file <path>``, ``environment <variable>`` or ``flag --<name>``."""
    scope: Scope
    doc: str
    secret: bool = False


def setting(
    default: Any = ...,
    *,
    doc: str,
    scope: Scope = "restart",
    secret: bool = False,
    environment: str = "",
    **constraints: Any,
) -> Any:
    """Declares a field of a Settings class.

    Args:
        default: the value when no source sets it; ``...`` makes the field required.
        doc: one sentence with unit and meaning.
        scope: when a changed value takes effect.
        secret: never printed.
        environment: a further environment variable besides ANTIPHON_<SECTION>_<FIELD>.
        constraints: pydantic's, such as ``ge=1`` or ``default_factory=list``.
    """
    extra = {"scope": scope, "secret": secret, "environment": environment}
    if "default_factory" not in constraints:
        constraints["default"] = default
    return Field(description=doc, json_schema_extra=extra, repr=not secret, **constraints)


class Settings(BaseModel):
    """Base of every service's settings: frozen, strict about names, aware of origins."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _digest: str = PrivateAttr(default="")

    def origin(self, name: str) -> str:
        """Where the value of a dotted name came from."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            found = self._origins.get(".".join(parts[:length]))
            if found:
                return found
        return "default"

    def values(self) -> list[SettingValue]:
        """Every leaf with its governing value and origin, in declaration order."""
        tree = self.model_dump(mode="json")
        rows = []
        for leaf in leaves(type(self)):
            value = _lookup(tree, leaf.path)
            if leaf.secret and value:
                value = "***"
            rows.append(
                SettingValue(
                    leaf.name, value, self.origin(leaf.name), leaf.scope, leaf.doc, leaf.secret
                )
            )
        return rows

    def digest(self) -> str:
        """SHA-256 (hex) over all values but secrets: equal digests are equal configurations."""
        if not self._digest:
            pairs = [[row.name, row.value] for row in self.values()]
            text = json.dumps(pairs, sort_keys=True)
            self._digest = hashlib.sha256(text.encode()).hexdigest()
        return self._digest

    def with_origins(self, origins: Mapping[str, str]) -> Self:
        """This object, told where its values came from."""
        self._origins.update(origins)
        return self


SettingsType = TypeVar("SettingsType", bound=Settings)


def load_settings(
    cls: type[SettingsType],
    *,
    section: str,
    config_file: Path | None = None,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> SettingsType:
    """Builds the settings of one section.

    Args:
        cls: the settings class.
        section: the file's table, the flags' context and the environment prefix, such as ``llm``.
        config_file: a .toml, .yaml or .yml file; None reads none.
        argv: flags only (``--field value``), without program name and ``--config``.
        environ: the environment; None takes the process's.

    Raises:
        ConfigError: naming each wrong key, its origin and close matches.
    """
    sources = Sources()
    if config_file is not None:
        read_file(sources, config_file, section)
    read_environment(sources, cls, section, os.environ if environ is None else environ)
    read_flags(sources, cls, section, argv or ())
    try:
        settings = cls.model_validate(sources.values)
    except ValidationError as error:
        raise _config_error(cls, section, sources, error) from None
    return settings.with_origins(sources.origins)


def settings_from_command_line(
    cls: type[SettingsType],
    *,
    section: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> SettingsType:
    """What ``__main__`` calls: handles --config, --print-config and --help.

    Args:
        argv: arguments without the program name; None takes the process's.

    Raises:
        SystemExit: 0 after --help and --print-config, 71 after a configuration error, which is
            printed to stderr as one line.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if "--help" in arguments or "-h" in arguments:
        print(help_text(cls, section))
        raise SystemExit(0)
    print_config = "--print-config" in arguments
    if print_config:
        arguments.remove("--print-config")
    try:
        config_file, flags = _take_config_file(arguments)
        settings = load_settings(
            cls, section=section, config_file=config_file, argv=flags, environ=environ
        )
    except ConfigError as error:
        print(f"antiphon {section}: configuration error: {error.message}", file=sys.stderr)
        raise SystemExit(BOOT_REFUSED) from None
    if print_config:
        print(config_text(settings, section))
        raise SystemExit(0)
    return settings


def config_text(settings: Settings, section: str) -> str:
    """The governing configuration, one ``name = value  # origin`` a line."""
    lines = [section_name(section)]
    lines += [
        f"{row.name} = {json.dumps(row.value, ensure_ascii=False)}  # {row.origin}"
        for row in settings.values()
    ]
    return "\n".join(lines)


def help_text(cls: type[Settings], section: str) -> str:
    """Every flag with its documentation and environment name."""
    lines = [
        f"Settings of {section_name(section)}; each is also a key of the file's section and",
        f"an environment variable ANTIPHON_{section.upper()}_<FIELD>.",
        "",
        "  --config PATH           .toml, .yaml or .yml file",
        "  --print-config          print each value with its origin and exit",
    ]
    lines += [f"  {leaf.flag:<24}{leaf.doc}" for leaf in leaves(cls)]
    return "\n".join(lines)


def process_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A copy of the process environment for a child process, with further variables."""
    return {**os.environ, **(extra or {})}


def _take_config_file(arguments: list[str]) -> tuple[Path | None, list[str]]:
    config_file: Path | None = None
    flags: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if argument == "--config":
            if not queue:
                raise ConfigError("flag --config needs a value", field="config")
            config_file = Path(queue.pop(0))
        elif argument.startswith("--config="):
            config_file = Path(argument.removeprefix("--config="))
        else:
            flags.append(argument)
    return config_file, flags


def _config_error(
    cls: type[Settings], section: str, sources: Sources, error: ValidationError
) -> ConfigError:
    problems = []
    names = []
    secrets = {leaf.name for leaf in leaves(cls) if leaf.secret}
    for detail in error.errors(include_url=False):
        path = [str(part) for part in detail["loc"]]
        name = ".".join(path)
        names.append(name)
        origin = _origin_of(sources, path)
        if detail["type"] == "extra_forbidden":
            problem = unknown_key_message(cls, path, section)
        elif detail["type"] == "missing":
            problem = f"{section}.{name} is required"
        elif not path:
            problem = f"{section_name(section)}: {detail['msg']}"
        elif name in secrets:
            problem = f"{section}.{name}: {detail['msg']}"
        else:
            problem = f"{section}.{name}: {detail['msg']}, got {detail['input']!r}"
        problems.append(problem + (f" (from {origin})" if origin else ""))
    return ConfigError(join_problems(problems), field=names[0])


def _origin_of(sources: Sources, path: Sequence[str]) -> str:
    for length in range(len(path), 0, -1):
        found = sources.origins.get(".".join(path[:length]))
        if found:
            return found
    return ""


def _lookup(tree: object, path: Sequence[str]) -> object:
    for part in path:
        if not isinstance(tree, Mapping):
            return None
        tree = tree.get(part)
    return tree
