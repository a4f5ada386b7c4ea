"""Recorded programs: what they replay, and the steps that they refuse to be."""

from __future__ import annotations

from collections.abc import Callable

import antiphon_kernels
import pytest
import torch
from antiphon_kernels.cpu import library
from antiphon_kernels.cpu.program import ProgramFault, record
from antiphon_kernels.gated_activation import silu_mul
from antiphon_kernels.rms_norm import add_rms_norm, rms_norm
from antiphon_kernels.rope import rope


class Memory:
    """Fixed tensors of a small step."""

    def __init__(self) -> None:
        self.x, self.update = torch.randn(2, 32), torch.randn(2, 32)
        self.normed, self.product = torch.zeros(2, 32), torch.zeros(2, 16)
        self.weight = torch.randn(32)
        self.positions = torch.tensor([1, 3], dtype=torch.int32)
        self.cos, self.sin = torch.randn(8, 4), torch.randn(8, 4)

    def step(self) -> None:
        rms_norm(self.x, self.weight, 1e-5, out=self.normed)
        heads = self.normed.view(2, 4, 8)
        rope(heads[:, :2], heads[:, 2:], self.positions, self.cos, self.sin)
        add_rms_norm(self.update, self.x, self.weight, 1e-5, out=(self.normed, self.x))
        silu_mul(self.normed, out=self.product)


@pytest.fixture
def memory(isa: str) -> Memory:
    torch.manual_seed(3)
    return Memory()


def test_a_replay_does_what_the_step_does(memory: Memory, threads: int) -> None:
    program, refusal = record(memory.step)
    assert program is not None, refusal
    assert len(program) == 4
    for _ in range(3):
        memory.x.normal_()
        memory.positions.random_(0, 8)
        before = memory.x.clone()
        memory.step()
        expected = memory.x.clone(), memory.product.clone()
        memory.x.copy_(before)
        memory.product.zero_()
        program.replay()
        assert torch.equal(memory.x, expected[0])
        assert torch.equal(memory.product, expected[1])


def test_the_recorded_step_itself_runs_as_always(memory: Memory) -> None:
    before = memory.x.clone()
    memory.step()
    expected = memory.product.clone()
    memory.x.copy_(before)
    record(memory.step)
    assert torch.equal(memory.product, expected)


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (lambda memory: memory.x.mul_(2.0), "mul_"),
        (lambda memory: rms_norm(memory.x, memory.weight, 1e-5), "empty"),
        (lambda memory: memory.x.t().contiguous(), "clone"),
        (lambda memory: memory.positions.long(), "to"),
    ],
)
def test_what_a_replay_would_miss_is_refused(
    memory: Memory, extra: Callable[[Memory], object], named: str
) -> None:
    def step() -> None:
        memory.step()
        extra(memory)

    program, refusal = record(step)
    assert program is None
    assert named in refusal


def test_bad_data_stops_a_replay_at_its_call(memory: Memory) -> None:
    program, _ = record(memory.step)
    assert program is not None
    memory.positions[1] = 8
    before = memory.x.clone()
    with pytest.raises(ProgramFault, match="call 1 of the program, rope"):
        program.replay()
    assert torch.equal(memory.x, before), "a later call ran"


def test_a_step_that_raises_leaves_nothing_recording(memory: Memory) -> None:
    memory.positions[1] = 8
    with pytest.raises(IndexError, match="position"):
        record(memory.step)
    memory.positions[1] = 7
    program, refusal = record(memory.step)
    assert program is not None, refusal
    assert len(program) == 4


def test_other_kernels_or_threads_make_a_program_stale(memory: Memory) -> None:
    program, _ = record(memory.step)
    assert program is not None
    assert program.current
    before = antiphon_kernels.threads()
    antiphon_kernels.set_threads(before + 1)
    assert not program.current
    antiphon_kernels.set_threads(before)
    assert program.current
    with library.use("reference"):
        assert not program.current


def test_without_native_kernels_the_step_runs_and_is_refused() -> None:
    memory = Memory()
    with library.use("reference"):
        assert record(memory.step) == (None, "no native kernels")
    assert memory.product.abs().sum() > 0
