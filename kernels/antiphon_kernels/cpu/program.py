"""Recorded programs: a fixed list of kernel calls that one call of the library runs.

The CPU twin of a CUDA graph. Calling a kernel through ctypes costs more than a small kernel
runs for, and a decode step has hundreds of them with the same arguments every time. Recording
runs such a step once, as always, and notes each call; a replay reissues them all.

A program holds addresses. What it reads and writes must therefore outlive it and stay in
place, so recording refuses a step that allocates or computes anything outside the kernels;
only views pass. Whoever replays compares the addresses of the memory that it passes in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import Structure, Union, c_float, c_int64, c_void_p
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon_kernels.cpu import library

if TYPE_CHECKING:
    from antiphon_kernels.cpu.binding import Native

RECORDABLE = (
    "quant_linear",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "gated_activation",
    "store_kv",
    "paged_attention",
    "quant_linear_int16",
    "lora",
)
"""Kernels by their number in program.cpp."""
_NUMBERS = {name: number for number, name in enumerate(RECORDABLE)}
_ARGUMENTS = 16


class _Argument(Union):
    _fields_ = (("pointer", c_void_p), ("integer", c_int64), ("real", c_float))


class _Call(Structure):
    _fields_ = (("kernel", c_int64), ("arguments", _Argument * _ARGUMENTS))


class ProgramFault(RuntimeError):
    """A recorded call refused its data; the calls before it have run."""


class Program:
    """Recorded calls in order; replay has no Python between them."""

    def __init__(self, native: Native, recorder: Recorder) -> None:
        self._native = native
        self._threads = native.threads
        self._products = library.products()
        self._names = [name for name, _, _ in recorder.calls]
        self._kept = recorder.kept
        self._calls = (_Call * len(recorder.calls))()
        for call, (name, types, values) in zip(self._calls, recorder.calls, strict=True):
            call.kernel = _NUMBERS[name]
            for argument, kind, value in zip(call.arguments, types, values, strict=False):
                _set(argument, kind, value)

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def current(self) -> bool:
        """Whether it was recorded with the kernels, products and team size chosen now."""
        return (
            library.native() is self._native
            and self._threads == self._native.threads
            and self._products == library.products()
        )

    def replay(self) -> None:
        """Runs every call.

        Raises:
            ProgramFault: a call refused what its memory holds, such as a position outside the
                tables. The same step run without the program raises the operation's error.
        """
        done = self._native.run_program(self._calls)
        if done < len(self._calls):
            raise ProgramFault(f"call {done} of the program, {self._names[done]}, failed")


class Recorder(TorchDispatchMode):
    """Notes the kernel calls of a step while they run, and why it cannot be a program.

    Attributes:
        calls: (kernel, argument types, arguments) in order.
        kept: argument records that the calls point to.
        refusal: the first thing that a replay would miss; empty when there is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = []
        self.kept: list[Structure] = []
        self.refusal = ""

    def add(self, name: str, types: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        """Notes one call of a kernel."""
        if name not in _NUMBERS:
            self.refusal = self.refusal or f"{name} is not recordable"
            return
        self.kept.extend(value for value in values if isinstance(value, Structure))
        self.calls.append((name, types, values))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs a torch operation; any but a view of its input refuses the recording."""
        result = func(*args, **(kwargs or {}))
        if not self.refusal and not _only_views(func, args, result):
            self.refusal = f"{func} is not a kernel"
        return result


def record(step: Callable[[], None]) -> tuple[Program | None, str]:
    """Runs ``step`` as always and returns (program, ""), or (None, why there is none).

    One thread may record at a time, and no other may call kernels meanwhile.
    """
    native = library.native()
    if native is None:
        step()
        return None, "no native kernels"
    recorder = Recorder()
    with recorder, native.recording(recorder):
        step()
    if recorder.refusal:
        return None, recorder.refusal
    return Program(native, recorder), ""


def _set(argument: _Argument, kind: Any, value: Any) -> None:
    if isinstance(value, Structure):
        argument.pointer = ctypes.addressof(value)
    elif kind is c_void_p:
        argument.pointer = value
    elif kind is c_float:
        argument.real = value
    else:
        argument.integer = value


def _only_views(func: Any, args: tuple[Any, ...], result: Any) -> bool:
    """Whether an operation changed nothing and returned memory of its first argument."""
    if func._schema.is_mutable or not args or not isinstance(args[0], torch.Tensor):
        return False
    storage = args[0].untyped_storage().data_ptr()
    outputs = result if isinstance(result, list | tuple) else (result,)
    return all(
        isinstance(output, torch.Tensor) and output.untyped_storage().data_ptr() == storage
        for output in outputs
    )
