"""Adapters over several llm services: everywhere or nowhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from antiphon_core.errors import (
    AlreadyExists,
    AntiphonError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
)
from antiphon_gateway.clients.adapters import AdapterClient
from antiphon_gateway.clients.pool import Member, Pool
from antiphon_gateway.domain.catalog import ModelInfo
from antiphon_gateway.identity.principal import Principal, use_principal

RED = Principal(tenant="red")


def info(name: str, base: str = "", **fields: Any) -> ModelInfo:
    return ModelInfo(name, 10, (), (), True, base_model=base, **fields)


class Service:
    """One llm service's adapters, and what its next changes fail with."""

    def __init__(self, *bases: str) -> None:
        self.models = [info(base) for base in bases]
        self.failure: AntiphonError | None = None

    async def load_adapter(self, name: str, path: str, shared: bool, timeout: float) -> ModelInfo:
        if self.failure is not None:
            raise self.failure
        if any(model.id == name for model in self.models):
            raise AlreadyExists("taken", field="name")
        made = info(name, self.models[0].id, tenant="" if shared else "red", shared=shared)
        self.models.append(made)
        return made

    async def unload_adapter(self, name: str, shared: bool, timeout: float) -> None:
        if self.failure is not None:
            raise self.failure
        kept = [model for model in self.models if model.id != name]
        if len(kept) == len(self.models):
            raise NotFound("gone", reason="ADAPTER_NOT_FOUND")
        self.models = kept

    async def list_models(self) -> tuple[ModelInfo, ...]:
        return tuple(self.models)

    @property
    def adapters(self) -> list[str]:
        return [model.id for model in self.models if model.base_model]


class Fleet:
    """Services behind one client."""

    def __init__(self, *services: Service, balanced: bool = False) -> None:
        self.services = services
        self.monitors = [SimpleNamespace(is_ready=True, free_slots=1) for _ in services]
        pool: Any = Pool(
            [
                Member(service, monitor, tuple(service.models))  # type: ignore[arg-type]
                for service, monitor in zip(services, self.monitors, strict=True)
            ]
        )
        self.client = AdapterClient(pool, balanced=balanced)

    async def load(self, name: str = "poet", base: str = "") -> ModelInfo:
        with use_principal(RED):
            return await self.client.load(name, "p", shared=False, base_model=base, timeout=1.0)

    async def unload(self, name: str = "poet") -> None:
        with use_principal(RED):
            await self.client.unload(self.client.find(name), timeout=1.0)


async def test_every_ready_service_of_the_base_loads_it() -> None:
    one, two, other, away = Service("m"), Service("m"), Service("n"), Service("m")
    fleet = Fleet(one, two, other, away)
    fleet.monitors[3].is_ready = False
    assert (await fleet.load(base="m")).id == "poet"
    assert [s.adapters for s in fleet.services] == [["poet"], ["poet"], [], []]
    await fleet.unload()
    assert not one.adapters and not two.adapters


async def test_a_refusal_anywhere_leaves_it_nowhere() -> None:
    one, two = Service("m"), Service("m")
    two.failure = ResourceExhausted("full", reason="SLOTS_FULL")
    with pytest.raises(ResourceExhausted):
        await Fleet(one, two).load()
    assert one.adapters == two.adapters == []


async def test_a_service_that_lost_it_gets_it_again() -> None:
    one, two = Service("m"), Service("m")
    fleet = Fleet(one, two)
    await fleet.load()
    one.models = [info("m")]
    assert (await fleet.load()).id == "poet"
    assert one.adapters == two.adapters == ["poet"]
    with pytest.raises(AlreadyExists):
        await fleet.load()


async def test_one_that_is_gone_already_is_no_failure_and_one_in_use_is() -> None:
    one, two = Service("m"), Service("m")
    fleet = Fleet(one, two)
    await fleet.load()
    one.models = [info("m")]
    two.failure = FailedPrecondition("used", reason="IN_USE")
    with pytest.raises(FailedPrecondition):
        await fleet.unload()
    two.failure = None
    await fleet.unload()
    assert two.adapters == []
    with pytest.raises(NotFound) as gone:
        await fleet.unload()
    assert gone.value.reason == "ADAPTER_NOT_FOUND"


async def test_which_base_has_to_be_clear() -> None:
    fleet = Fleet(Service("m"), Service("n"))
    with pytest.raises(InvalidArgument) as unclear:
        await fleet.load()
    assert (unclear.value.field, unclear.value.metadata["allowed"]) == ("base_model", "m, n")
    with pytest.raises(NotFound):
        await fleet.load(base="x")


async def test_services_that_cannot_be_addressed_alone_are_left_alone() -> None:
    one, two = Service("m"), Service("m")
    with pytest.raises(Unimplemented, match="a proxy chooses among several llm services"):
        await Fleet(one, two, balanced=True).load()
    assert one.adapters == two.adapters == []
    assert (await Fleet(one, balanced=True).load()).id == "poet"


async def test_without_a_ready_service_nothing_is_known() -> None:
    fleet = Fleet(Service("m"))
    fleet.monitors[0].is_ready = False
    fleet.monitors[0].unavailable = lambda: Unavailable("starting", reason="BOOTING")
    with pytest.raises(Unavailable), use_principal(RED):
        fleet.client.visible()
