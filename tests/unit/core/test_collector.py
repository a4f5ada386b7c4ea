"""The collector's state round a pause, and what a settled process no longer walks."""

from __future__ import annotations

import gc

import pytest
from antiphon_core import collector


def test_a_pause_restores_what_it_found() -> None:
    assert gc.isenabled()
    with pytest.raises(LookupError), collector.paused():
        assert not gc.isenabled()
        with collector.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise LookupError
    assert gc.isenabled()


def test_what_is_there_is_not_walked_again() -> None:
    kept = [[] for _ in range(1000)]
    collector.settle()
    try:
        walked = {id(one) for one in gc.get_objects()}
        assert not walked & set(map(id, kept))
        assert gc.get_freeze_count() >= len(kept)
    finally:
        gc.unfreeze()
