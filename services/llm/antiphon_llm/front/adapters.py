"""The adapters that callers may name: whose they are, loading and unloading."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from antiphon_core.errors import (
    AlreadyExists,
    AntiphonError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unimplemented,
)
from antiphon_core.logs import get_logger

from antiphon_llm.adapter_messages import AdapterFacts
from antiphon_llm.front.control import EngineControl
from antiphon_llm.front.model import ModelCard

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PATH_CHARACTERS = 1024

log = get_logger("adapters")

Owner = str | None
"""A tenant, or None for what every tenant may use."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    path: str
    card: ModelCard


class FrontAdapters:
    """What the engine has loaded, as callers see it.

    Args:
        served: whether an adapter root is configured.
        base: the served model's card; raises where it is not known yet.
        is_model_name: whether a name is the served model's.
        control: of the running engine; raises where none runs.
    """

    def __init__(
        self,
        *,
        served: bool,
        base: Callable[[], ModelCard],
        is_model_name: Callable[[str], bool],
        control: Callable[[], EngineControl],
    ) -> None:
        self._served = served
        self._base = base
        self._is_model_name = is_model_name
        self._control = control
        self._loaded: dict[tuple[Owner, str], _Loaded] = {}
        self._changing: set[tuple[Owner, str]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    def find(self, name: str, tenant: str) -> ModelCard | None:
        """The adapter that a tenant means by a name: its own, else one for everybody."""
        loaded = self._loaded.get((tenant, name)) or self._loaded.get((None, name))
        return None if loaded is None else loaded.card

    def visible(self, tenant: str | None) -> list[ModelCard]:
        """What a tenant may use, its own where two have one name; all for None."""
        if tenant is None:
            return [loaded.card for loaded in self._loaded.values()]
        names = dict.fromkeys(name for _, name in self._loaded)
        return [card for name in names if (card := self.find(name, tenant)) is not None]

    async def load(self, name: str, path: str, *, tenant: str, shared: bool = False) -> ModelCard:
        """Loads an adapter for a tenant, or for all. Goes on where the caller leaves.

        Raises:
            Unimplemented: this deployment serves none.
            InvalidArgument: the name, or what lies at the path.
            AlreadyExists: the name is taken.
            ResourceExhausted: no slot is free, or its bytes are too many.
        """
        self._require_served()
        if not NAME.fullmatch(name):
            raise InvalidArgument(
                f"name is {name[:100]!r}, allowed are 1 to 64 of A-Z a-z 0-9 . _ -", field="name"
            )
        if not 0 < len(path) <= _PATH_CHARACTERS:
            raise InvalidArgument(
                f"path has {len(path)} characters, allowed are 1 to {_PATH_CHARACTERS}",
                field="path",
            )
        key = (None if shared else tenant, name)
        if (
            name == "default"
            or self._is_model_name(name)
            or key in self._loaded
            or key in self._changing
        ):
            raise AlreadyExists(f"name {name!r} is that of a model or adapter", field="name")
        self._base()
        return await self._shielded(key, self._load(key, path))

    async def unload(self, name: str, *, tenant: str, shared: bool = False) -> None:
        """Forgets an adapter of a tenant, or one for all. Goes on where the caller leaves.

        Raises:
            NotFound: there is none.
            FailedPrecondition: requests use it.
            PermissionDenied: it is for everybody, and not the tenant's.
        """
        self._require_served()
        key = (None if shared else tenant, name)
        if key not in self._loaded or key in self._changing:
            if not shared and (None, name) in self._loaded:
                raise PermissionDenied(f"the adapter {name!r} is not this tenant's: all use it")
            raise NotFound(
                f"no adapter {name[:100]!r} is loaded", reason="ADAPTER_NOT_FOUND", field="name"
            )
        await self._shielded(key, self._unload(key))

    async def restore(self) -> None:
        """Loads everything again into an engine that was started anew; what fails is dropped."""
        for key, loaded in list(self._loaded.items()):
            owner, name = key
            try:
                facts = await self._control().load_adapter(name, loaded.path, owner)
            except AntiphonError as error:
                log.warning("adapter_lost", adapter=name, error=error.message)
                self._loaded.pop(key, None)
                continue
            created = loaded.card.loaded_at
            self._loaded[key] = _Loaded(loaded.path, self._card(key, facts, created))

    async def _load(self, key: tuple[Owner, str], path: str) -> ModelCard:
        owner, name = key
        facts = await self._control().load_adapter(name, path, owner)
        card = self._card(key, facts, time.time())
        self._loaded[key] = _Loaded(path, card)
        return card

    async def _unload(self, key: tuple[Owner, str]) -> None:
        owner, name = key
        await self._control().unload_adapter(name, owner)
        self._loaded.pop(key, None)

    async def _shielded(self, key: tuple[Owner, str], change: Coroutine[Any, Any, Any]) -> Any:
        """Runs a change of one name to its end, whatever becomes of who asked for it."""
        self._changing.add(key)
        task = asyncio.ensure_future(change)
        self._tasks.add(task)

        def over(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            self._changing.discard(key)
            if not task.cancelled():
                task.exception()

        task.add_done_callback(over)
        return await asyncio.shield(task)

    def _card(self, key: tuple[Owner, str], facts: AdapterFacts, created: float) -> ModelCard:
        base, (owner, name) = self._base(), key
        mixed = hashlib.sha256(f"{base.fingerprint} {facts.digest}".encode()).hexdigest()
        return replace(
            base,
            name=name,
            aliases=(),
            fingerprint=mixed[: len(base.fingerprint)],
            loaded_at=created,
            base_model=base.name,
            tenant=owner or "",
            shared=owner is None,
        )

    def _require_served(self) -> None:
        if not self._served:
            raise Unimplemented("this deployment serves no adapters: [llm] adapters_dir is not set")
