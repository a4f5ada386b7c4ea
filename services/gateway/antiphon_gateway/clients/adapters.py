"""Adapters of the language models: listed from the catalogue, loaded and unloaded everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon_core.errors import (
    AlreadyExists,
    AntiphonError,
    InvalidArgument,
    NotFound,
    Unimplemented,
)
from antiphon_core.logs import get_logger

from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.identity.principal import current_principal
from antiphon_gateway.names import resolve_model, visible_models

if TYPE_CHECKING:
    from antiphon_gateway.clients.llm import LlmBackend
    from antiphon_gateway.clients.pool import Member, Pool

log = get_logger(__name__)


class AdapterClient:
    """What the current principal may see and change.

    Args:
        pool: of the llm services.
        balanced: a proxy chooses among them, so that none can be addressed alone.
    """

    def __init__(self, pool: Pool[LlmBackend, ModelInfo], *, balanced: bool) -> None:
        self._pool = pool
        self._balanced = balanced

    def visible(self) -> list[ModelInfo]:
        """The adapters that the principal may use.

        Raises:
            Unavailable: no llm service is ready.
        """
        self._pool.require_ready()
        models = visible_models(self._pool.served, current_principal())
        return [model for model in models if model.base_model]

    def find(self, name: str) -> ModelInfo:
        """One of them.

        Raises:
            NotFound: ADAPTER_NOT_FOUND.
        """
        for model in self.visible():
            if model.id == name:
                return model
        raise _not_found(name)

    async def load(
        self, name: str, path: str, *, shared: bool, base_model: str, timeout: float
    ) -> ModelInfo:
        """Loads an adapter into every ready service of its base model, or into none.

        Args:
            name: for requests.
            path: of its directory, beneath the services' adapter root.
            shared: every tenant may use it, not the principal's alone.
            base_model: any name of the model that it belongs to; empty where one is served.
            timeout: seconds for each service.

        Raises:
            AntiphonError: a service refuses it.
        """
        members = self._members(base_model)
        loaded: list[Member[LlmBackend, ModelInfo]] = []
        found: ModelInfo | None = None
        exists: AlreadyExists | None = None
        for member in members:
            try:
                found = await member.client.load_adapter(name, path, shared, timeout)
                loaded.append(member)
            except AlreadyExists as error:
                # A service that was restarted has lost what the others still have.
                exists = error
            except AntiphonError:
                await self._take_back(name, shared, loaded)
                raise
        if found is None:
            assert exists is not None
            raise exists
        await _refresh(members)
        return found

    async def unload(self, adapter: ModelInfo, *, timeout: float) -> None:
        """Unloads an adapter from every ready service that has it.

        Raises:
            AntiphonError: a service refuses, as while requests use it.
        """
        members = [
            member
            for member in self._members(adapter.base_model)
            if any(item.key == adapter.key for item in member.served)
        ]
        try:
            for member in members:
                try:
                    await member.client.unload_adapter(adapter.id, adapter.shared, timeout)
                except NotFound:
                    # Restarted, or unloaded by another gateway: gone either way.
                    continue
        finally:
            await _refresh(members)

    def _members(self, base_model: str) -> list[Member[LlmBackend, ModelInfo]]:
        self._pool.require_ready()
        if self._balanced and len(self._pool.members) > 1:
            raise Unimplemented(
                "a proxy chooses among several llm services, so none can be told to load an "
                "adapter; name it in [llm] adapters of each"
            )
        bases = {model.id: model for model in self._pool.served if not model.base_model}
        if len(bases) > 1 and not base_model:
            raise InvalidArgument(
                "base_model is required where several models are served",
                reason="MISSING_FIELD", field="base_model", allowed=sorted(bases),
            )  # fmt: skip
        base = resolve_model(base_model, list(bases.values()))
        return [
            member
            for member in self._pool.members
            if member.monitor.is_ready and any(item.id == base.id for item in member.served)
        ]

    async def _take_back(
        self, name: str, shared: bool, loaded: list[Member[LlmBackend, ModelInfo]]
    ) -> None:
        for member in loaded:
            try:
                await member.client.unload_adapter(name, shared, timeout=5.0)
            except AntiphonError as error:
                log.warning("adapter_left_behind", adapter=name, error=error.message)


async def _refresh(members: list[Member[LlmBackend, ModelInfo]]) -> None:
    """The next request must see the change, which the catalogue brings seconds later."""
    for member in members:
        try:
            member.served = await member.client.list_models()
        except AntiphonError as error:
            log.warning("catalogue_not_refreshed", error=error.message)


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"no adapter {name[:100]!r} is loaded", reason="ADAPTER_NOT_FOUND", field="name"
    )
