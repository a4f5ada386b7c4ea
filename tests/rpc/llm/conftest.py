"""The llm front on a real server and socket, over a scripted engine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from antiphon_llm.front import service

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from llm_bench import LlmBench  # noqa: E402
from scripted_engine import Script  # noqa: E402


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session", autouse=True)
def one_tokenizer() -> Iterator[None]:
    """The default model's text side is read once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "load_text_model", _once(service.load_text_model))
        yield


def _once(load: Callable[..., Any]) -> Callable[..., Any]:
    """The same answer to the same arguments, which need not be hashable."""
    known: dict[str, Any] = {}

    def cached(*arguments: Any) -> Any:
        key = repr(arguments)
        if key not in known:
            known[key] = load(*arguments)
        return known[key]

    return cached


@pytest.fixture
async def llm(model_cache: Path) -> AsyncIterator[LlmBench]:
    """The engine in a thread."""
    made = LlmBench(model_cache, Script())
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def llm_process(model_cache: Path) -> AsyncIterator[LlmBench]:
    """The engine as a process that can be killed."""
    made = LlmBench(model_cache, None)
    await made.start()
    yield made
    await made.stop()
