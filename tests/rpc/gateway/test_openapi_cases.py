"""Requests made of the served OpenAPI document: no 5xx, nothing undocumented."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateway_bench import GatewayBench
from schemathesis import GenerationMode
from support.openapi_cases import Cases
from support.waiting import until

MANY = 1_000
FEW = 40
"""Need not hold every kind of answer. What the document forbids, test_bad_input sends too."""
CASES = [
    (GenerationMode.POSITIVE, FEW),
    pytest.param(GenerationMode.POSITIVE, MANY, marks=pytest.mark.slow),
    pytest.param(GenerationMode.NEGATIVE, MANY, marks=pytest.mark.slow),
]
SENSIBLE = {
    "messages": [{"role": "user", "content": "Hi"}],
    "prompt": "Hi",
    "input": "Hi",
    "tokens": [72, 105],
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayBench]:
    """A gateway with a store, on a loop and a thread of its own: Schemathesis blocks."""
    folder: Path = tmp_path_factory.mktemp("store")
    bench = GatewayBench(store={"directory": str(folder)})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(60)

    bench.fakes.vocoder.mime_type = ""  # the gateway's own
    run(bench.start())
    yield bench
    run(bench.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.mark.parametrize(("mode", "count"), CASES)
async def test_no_answer_is_undocumented(
    served: GatewayBench,
    mode: GenerationMode,
    count: int,
    record_property: Callable[[str, object], None],
) -> None:
    cases = Cases(served.url, SENSIBLE)
    cases.ask(mode, count)
    record_property(f"{mode.value}_requests", cases.statuses.total())
    assert cases.statuses.total() >= count
    if mode is GenerationMode.POSITIVE and count >= MANY:
        assert cases.statuses[200] >= count // 5
        assert cases.streamed_events
    # On a thread of its own, the last one ends a moment after its answer.
    await until(lambda: served.gateway.active_requests == 0)
