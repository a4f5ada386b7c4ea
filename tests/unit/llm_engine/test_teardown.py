"""Owners are released newest first, all of them, and what is still held is named."""

from __future__ import annotations

import pytest
from antiphon_llm.engine.teardown import Owners


class Holder:
    pass


def test_newest_first_and_everything_after_a_failure() -> None:
    owners = Owners()
    released: list[str] = []

    def release(name: str, error: Exception | None = None) -> None:
        released.append(name)
        if error is not None:
            raise error

    owners.register("weights", Holder(), release=lambda: release("weights", KeyError("second")))
    owners.register("kv", Holder(), release=lambda: release("kv", ValueError("first")))
    owners.register("runner", Holder(), release=lambda: release("runner"))
    with pytest.raises(ValueError, match="first"):
        owners.release()
    assert released == ["runner", "kv", "weights"]


def test_what_is_still_referred_to_is_counted() -> None:
    owners = Owners()
    kept, dropped = Holder(), Holder()
    owners.register("kept", kept, nbytes=5)
    owners.register("dropped", dropped, nbytes=7)
    del dropped
    assert owners.sweep() == {"kept": 5, "dropped": 7}
    owners.release()
    assert owners.sweep() == {"kept": 5}
    del kept
    assert owners.sweep() == {}
