"""Memory that is given back in a sleep: views, ties and contents after waking."""

from __future__ import annotations

import pytest
import torch
from antiphon_llm.engine.cuda.sleep import SleepingMemory


def test_views_hold_their_weights_again_and_caches_are_zero() -> None:
    embedding, other = torch.randn(50, 8), torch.randn(30, 8).bfloat16()
    head, part = embedding.view(50, 8), other[5:9]
    cache = torch.ones(100, 4)
    keys = cache[10:20]
    expected = [embedding.clone(), other.clone(), part.clone()]
    memory = SleepingMemory([embedding, other, head], [cache])
    together = embedding.nbytes + other.nbytes + cache.nbytes
    memory.release()
    assert memory.asleep
    assert memory.bytes_released == together, "a tie counts once"
    assert all(t.untyped_storage().nbytes() == 0 for t in (embedding, head, other, cache))
    memory.release()
    memory.restore()
    assert not memory.asleep
    assert torch.equal(embedding, expected[0]) and torch.equal(head, expected[0])
    assert torch.equal(other, expected[1]) and torch.equal(part, expected[2])
    assert not cache.any() and not keys.any()
    assert memory.pageable_bytes == embedding.nbytes + other.nbytes
    keys.fill_(2)
    assert cache[10:20].eq(2).all()


def test_waking_without_memory_leaves_it_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, cache = torch.randn(4, 4), torch.ones(8)
    expected = weight.clone()
    memory = SleepingMemory([weight], [cache])
    memory.release()
    resize = torch.UntypedStorage.resize_

    def refuse(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if size == cache.nelement() * 4:
            raise torch.OutOfMemoryError("planted")
        return resize(storage, size)

    monkeypatch.setattr(torch.UntypedStorage, "resize_", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        memory.restore()
    assert memory.asleep and weight.untyped_storage().nbytes() == 0
    monkeypatch.undo()
    memory.restore()
    assert torch.equal(weight, expected) and not cache.any()
