"""Step data on its way to fixed places: contents, epochs and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from antiphon_llm.engine.cuda.device import HostDevice
from antiphon_llm.engine.uploads import StepUploads, UploadError

SHAPES = {"ids": (37, torch.int32), "slots": (9, torch.int64), "settings": (50, torch.uint8)}


class CountingEvent:
    """Remembers what was done to it, and can fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = False

    def record(self) -> None:
        if self.fails:
            raise RuntimeError("the device is lost")
        self.calls.append("record")

    def synchronize(self) -> None:
        self.calls.append("synchronize")


class CountingDevice(HostDevice):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[CountingEvent] = []
        self.current = 0

    def stream(self) -> int:
        return self.current

    def event(self) -> CountingEvent:
        self.events.append(CountingEvent())
        return self.events[-1]


def targets() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(size, dtype=dtype) for name, (size, dtype) in SHAPES.items()}


@pytest.mark.parametrize("mode", ["packed", "direct"])
def test_taken_members_arrive_and_all_else_stays(mode: str, rng: np.random.Generator) -> None:
    fixed = targets()
    expected = {name: tensor.clone() for name, tensor in fixed.items()}
    uploads = StepUploads(HostDevice(), slots=2, mode=mode)
    group = uploads.group("decode", fixed)
    addresses = {name: tensor.data_ptr() for name, tensor in fixed.items()}
    for _ in range(60):
        uploads.open()
        for name in rng.permutation(list(SHAPES))[: int(rng.integers(0, 4))]:
            size, dtype = SHAPES[name]
            count = int(rng.integers(0, size + 1))
            high = 255 if dtype == torch.uint8 else 1 << 30
            values = rng.integers(0, high, count)
            group.take(name, count)[:] = values
            expected[name][:count] = torch.from_numpy(values).to(dtype)
        group.publish()
        uploads.seal()
        for name, tensor in fixed.items():
            assert torch.equal(tensor, expected[name]), name
            assert tensor.data_ptr() == addresses[name]


def test_a_slot_is_opened_only_after_its_event() -> None:
    device = CountingDevice()
    uploads = StepUploads(device, slots=2, mode="packed")
    group = uploads.group("decode", targets())
    seen = []
    for step in range(5):
        seen.append(uploads.open())
        waits = device.events[seen[-1]].calls.count("synchronize")
        assert waits == step // 2, "open waits for the slot's former use, and for nothing else"
        group.take("ids", 3)[:] = step
        group.publish()
        uploads.seal()
        assert device.events[seen[-1]].calls[-1] == "record", "seal marks and never waits"
    assert seen == [0, 1, 0, 1, 0]


def test_a_step_in_flight_keeps_its_memory() -> None:
    uploads = StepUploads(HostDevice(), slots=2, mode="packed")
    group = uploads.group("decode", targets())
    uploads.open()
    first = group.take("ids", 4)
    first[:] = [1, 2, 3, 4]
    uploads.seal()
    uploads.open()
    group.take("ids", 4)[:] = 9
    assert first.tolist() == [1, 2, 3, 4]


def test_rules_of_an_epoch() -> None:
    uploads = StepUploads(HostDevice(), slots=1, mode="packed")
    group = uploads.group("decode", targets())
    with pytest.raises(UploadError, match="outside an epoch"):
        group.take("ids", 1)
    with pytest.raises(UploadError, match="no epoch"):
        uploads.seal()
    uploads.open()
    group.take("ids", 1)
    with pytest.raises(UploadError, match="taken twice"):
        group.take("ids", 1)
    with pytest.raises(UploadError, match="holds 9, not 10"):
        group.take("slots", 10)
    group.publish()
    with pytest.raises(UploadError, match="outside an epoch"):
        group.publish()
    with pytest.raises(UploadError, match="not sealed"):
        uploads.open()
    with pytest.raises(ValueError, match="upload_mode is 'fast'"):
        StepUploads(HostDevice(), slots=1, mode="fast")


def test_a_group_publishes_where_it_was_opened_and_nowhere_else() -> None:
    device = CountingDevice()
    uploads = StepUploads(device, slots=1, mode="packed")
    fixed = targets()
    group = uploads.group("decode", fixed)
    uploads.open()
    group.take("ids", 2)[:] = 5
    with ThreadPoolExecutor(1) as other:
        for work in (group.publish, uploads.open):
            with pytest.raises(UploadError, match="thread"):
                other.submit(work).result()
    device.current = 7
    with pytest.raises(UploadError, match="another thread or stream"):
        group.publish()
    assert not fixed["ids"].any()
    device.current = 0
    group.publish()
    assert fixed["ids"][:3].tolist() == [5, 5, 0]
    elsewhere = {"ids": torch.zeros(4, dtype=torch.int32, device="meta")}
    with pytest.raises(UploadError, match=r"other\.ids lies on meta, not cpu"):
        uploads.group("other", elsewhere)


def test_a_failed_step_gives_its_slot_back() -> None:
    fixed = targets()
    uploads = StepUploads(HostDevice(), slots=1, mode="packed")
    group = uploads.group("decode", fixed)
    uploads.open()
    group.take("ids", 5)[:] = 7
    uploads.seal()
    assert not fixed["ids"].any(), "what was taken and not published is not sent"
    uploads.open()
    group.take("ids", 2)[:] = 8
    group.publish()
    assert fixed["ids"][:3].tolist() == [8, 8, 0]


def test_a_slot_whose_end_cannot_be_marked_is_never_used_again() -> None:
    device = CountingDevice()
    uploads = StepUploads(device, slots=2, mode="packed")
    uploads.group("decode", targets())
    device.events[0].fails = True
    uploads.open()
    with pytest.raises(RuntimeError, match="lost"):
        uploads.seal()
    for _ in range(3):
        assert uploads.open() == 1
        uploads.seal()
    device.events[1].fails = True
    uploads.open()
    with pytest.raises(RuntimeError, match="lost"):
        uploads.seal()
    with pytest.raises(UploadError, match="every slot"):
        uploads.open()
