"""Small codecs, written once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from antiphon_vocoder.codec.contract import Codec
from antiphon_vocoder.codec.registry import load
from unit.vocoder_codec.small_codecs import WRITERS


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are small: a second thread only waits, and badly on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a small codec by its model_type."""
    written: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in written:
            written[kind] = tmp_path_factory.mktemp(kind)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                WRITERS[kind](written[kind])
        return written[kind]

    return get


@pytest.fixture(scope="session")
def codecs(checkpoint: Callable[[str], Path]) -> Callable[[str], Codec]:
    """A loaded small codec by its model_type."""
    loaded: dict[str, Codec] = {}

    def get(kind: str) -> Codec:
        if kind not in loaded:
            loaded[kind] = load(checkpoint(kind))
        return loaded[kind]

    return get
