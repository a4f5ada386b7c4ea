"""LoadAdapter, UnloadAdapter and ListAdapters on the real engine and the default model."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from antiphon.llm.v1 import generate_pb2, llm_service_pb2
from antiphon_core.errors import (
    AlreadyExists,
    AntiphonError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from antiphon_core.rpc.context import ALL_TENANTS, RequestContext, use_context
from antiphon_core.rpc.streams import messages, open_stream, read_all, result
from llm_bench import Collected, chat, limit
from support.adapters import save_for_default_model

from bench.service import BOOT_S, LlmService, llm_service

GREEDY = generate_pb2.SamplingParams(temperature=0)
BASE = "smollm2-135m-instruct"


class Caller:
    """A tenant's calls."""

    def __init__(self, service: LlmService, tenant: str) -> None:
        self._service, self._tenant = service, tenant

    async def call(self, method: str, request: Any, **options: Any) -> Any:
        with use_context(RequestContext(tenant=self._tenant)):
            return await result(getattr(self._service.stub, method)(request, **options))

    async def load(self, name: str, path: str = "", *, shared: bool = False) -> Any:
        request = llm_service_pb2.LoadAdapterRequest(name=name, path=path or name, shared=shared)
        return (await self.call("LoadAdapter", request)).model

    async def unload(self, name: str, *, shared: bool = False) -> None:
        request = llm_service_pb2.UnloadAdapterRequest(name=name, shared=shared)
        await self.call("UnloadAdapter", request)

    async def names(self, **options: Any) -> list[str]:
        answer = await self.call("ListModels", llm_service_pb2.ListModelsRequest(), **options)
        listed = await self.call("ListAdapters", llm_service_pb2.ListAdaptersRequest(), **options)
        assert list(answer.models)[1:] == list(listed.models)
        return [model.id for model in listed.models]

    def stream(self, model: str, tokens: int = 24) -> Any:
        request = chat("What is the capital of France?", sampling=GREEDY, stop=limit(tokens))
        request.model = model
        with use_context(RequestContext(tenant=self._tenant)):
            return self._service.stub.Generate(request)

    async def say(self, model: str = "", tokens: int = 24) -> Collected:
        return Collected(await read_all(self.stream(model, tokens)))


async def refused(kind: type[AntiphonError], call: Any) -> AntiphonError:
    with pytest.raises(kind) as caught:
        await call
    return caught.value


@pytest.mark.real
async def test_adapters_come_and_go_under_traffic(tmp_path: Path) -> None:
    root = tmp_path / "adapters"
    for seed, name in enumerate(("one", "two", "boot")):
        save_for_default_model(root / name, seed=seed)
    flags = ("--context-limit", "1024", "--cache-dir", str(tmp_path), "--adapters-dir", str(root),
             "--adapter-slots", "4", "--adapters", '{"always": "boot"}')  # fmt: skip
    async with llm_service(tmp_path, *flags) as service:
        red, blue = Caller(service, "red"), Caller(service, "blue")
        await tenants_see_their_own(red, blue)
        await names_and_paths_are_checked(red)
        await loads_and_unloads_beside_a_stream(red)
        await adapters_survive_the_engine(service, red)
    assert service.process.returncode == 0


async def tenants_see_their_own(red: Caller, blue: Caller) -> None:
    base = await red.say()
    assert "Paris" in base.text()
    assert await red.names() == ["always"]
    model = await red.load("it", "one")
    assert (model.id, model.base_model, model.tenant, model.shared) == ("it", BASE, "red", False)
    await blue.load("it", "two")
    assert await red.names() == await blue.names() == ["always", "it"]
    everybody = await blue.names(metadata=((ALL_TENANTS, "1"),))
    assert everybody == ["always", "it", "it"]
    texts = {base.text()}
    for caller, name in ((red, "it"), (blue, "it"), (red, "always")):
        said = await caller.say(f"{BASE}:{name}")
        assert (said.accepted[0].model, (await caller.say(name)).text()) == (name, said.text())
        texts.add(said.text())
    assert len(texts) == 4
    found = await refused(PermissionDenied, red.unload("always"))
    assert "all use it" in found.message
    await blue.unload("it")
    gone = await refused(NotFound, blue.say("it"))
    assert gone.reason == "MODEL_NOT_FOUND"
    assert (await refused(NotFound, blue.say(f"{BASE}:it"))).reason == "ADAPTER_NOT_FOUND"
    assert (await red.say("it")).text() in texts
    assert (await red.say()).text() == base.text()


async def names_and_paths_are_checked(red: Caller) -> None:
    for name in ("it", BASE, "default"):
        assert (await refused(AlreadyExists, red.load(name, "one"))).field == "name"
    for name in ("", "a b", "x" * 65, "../one", "é"):
        assert (await refused(InvalidArgument, red.load(name, "one"))).field == "name"
    escapes = ("../../etc", "../adapters", "/etc", ".", "one/../..")
    for path in (*escapes, "missing", "x" * 2000, "one\0"):
        assert (await refused(InvalidArgument, red.load("new", path))).field == "path"
    assert (await refused(NotFound, red.unload("new"))).reason == "ADAPTER_NOT_FOUND"


async def loads_and_unloads_beside_a_stream(red: Caller) -> None:
    async with open_stream(red.stream("it", 400)) as call:
        async for message in messages(call):
            if message.HasField("delta"):
                break
        busy = await refused(FailedPrecondition, red.unload("it"))
        assert busy.reason == "IN_USE"
        for turn in range(6):
            await red.load("passing", ("one", "two")[turn % 2])
            assert (await red.say("passing", 4)).text()
            await red.unload("passing")
    async with asyncio.timeout(30):
        while True:
            try:
                await red.unload("it")
                break
            except FailedPrecondition:
                await asyncio.sleep(0.02)
    for name in ("a", "b", "c"):
        await red.load(name, "two")
    full = await refused(ResourceExhausted, red.load("d", "two"))
    assert full.reason == "SLOTS_FULL"
    for name in ("b", "c"):
        await red.unload(name)


async def adapters_survive_the_engine(service: LlmService, red: Caller) -> None:
    before = (await red.say("a")).text()
    os.kill(int(service.find(r'"worker":"llm-engine","pid":(\d+)') or 0), signal.SIGKILL)
    async with asyncio.timeout(BOOT_S):
        while True:
            try:
                after = (await red.say("a")).text()
                break
            except Unavailable:
                await asyncio.sleep(0.05)
    assert after == before
    assert await red.names() == ["always", "a"]
    assert service.find(r'"adapter":"(always)"') == "always"
    metrics = await service.metrics()
    assert next(value for (name, labels), value in metrics.items()
                if name.endswith("adapters") and ("state", "loaded") in labels) == 2  # fmt: skip
