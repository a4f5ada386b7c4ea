"""The ctypes binding of the native kernels.

Methods take tensors that the operations have checked for device and dtype; here strides turn
into arguments. A call releases the GIL for as long as the kernel runs.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_uint32
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from antiphon_kernels.cpu import build
from antiphon_kernels.cpu.signatures import FORMAT_NUMBERS, SIGNATURES, Attention, Lora, Weight

if TYPE_CHECKING:
    from antiphon_kernels.cpu.program import Recorder
    from antiphon_kernels.quant_linear.packed import PackedWeight


class Native:
    """The kernels of one instruction set.

    Attributes:
        isa: a key of :data:`build.ISA_FLAGS`.
        threads: the size of the team that a call uses at most.
    """

    def __init__(self, isa: str, threads: int) -> None:
        self.isa = isa
        self.threads = threads
        library = ctypes.CDLL(str(build.library_path(isa)))
        self._functions: dict[str, Callable[..., int]] = {}
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, f"antiphon_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        self._recorder: Recorder | None = None

    @contextmanager
    def recording(self, recorder: Recorder) -> Iterator[None]:
        """Notes every call in ``recorder`` besides making it."""
        self._recorder = recorder
        try:
            yield
        finally:
            self._recorder = None

    def run_program(self, calls: ctypes.Array[Any]) -> int:
        """Runs recorded calls and returns how many went well: up to the first with a fault."""
        return self._functions["run_program"](ctypes.addressof(calls), len(calls))

    def byte_product_rate(self) -> float:
        """Products of two bytes a second that the team reaches out of registers, at best."""
        rates = []
        for _ in range(50):
            started = time.perf_counter()
            done = self._functions["byte_product_peak"](1_000, self.threads)
            rates.append(done / (time.perf_counter() - started))
        return max(rates)

    def _call(self, name: str, *arguments: Any) -> int:
        if self._recorder is not None:
            self._recorder.add(name, SIGNATURES[name][1], arguments)
        return self._functions[name](*arguments)

    def quant_linear(
        self,
        x: torch.Tensor,
        weight: PackedWeight,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        *,
        int16: bool,
    ) -> None:
        if x.stride(1) != 1:
            x = x.contiguous()
        _require_rows("out", out)
        if bias is not None:
            bias = bias.float().contiguous()
        self._call(
            "quant_linear_int16" if int16 else "quant_linear",
            _described(weight),
            x.data_ptr(),
            x.stride(0),
            x.shape[0],
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            self.threads,
        )

    def pack(self, data: torch.Tensor, weight: PackedWeight) -> None:
        self._call("pack", data.data_ptr(), _described(weight), self.threads)

    def gather_rows(self, weight: PackedWeight, ids: torch.Tensor, out: torch.Tensor) -> None:
        if ids.dtype != torch.int64 or ids.stride(0) != 1:
            ids = ids.to(torch.int64).contiguous()
        fault = self._call(
            "gather_rows",
            _described(weight),
            ids.data_ptr(),
            ids.shape[0],
            out.data_ptr(),
            self.threads,
        )
        if fault:
            raise IndexError(f"gather_rows: an id lies outside [0, {weight.shape[0]})")

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        plus_one: bool,
        out: torch.Tensor,
    ) -> None:
        if x.stride(-1) != 1:
            x = x.contiguous()
        _require_rows("out", out)
        heads = x.shape[1] if x.dim() == 3 else 1
        self._call(
            "rms_norm",
            x.data_ptr(),
            x.stride(0),
            x.stride(1),
            weight.data_ptr(),
            eps,
            1.0 if plus_one else 0.0,
            out.data_ptr(),
            out.stride(0),
            out.stride(1),
            x.shape[0],
            heads,
            x.shape[-1],
            self.threads,
        )

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        plus_one: bool,
        normed: torch.Tensor,
        total: torch.Tensor,
    ) -> None:
        _require_rows("x", x)
        _require_rows("residual", residual)
        self._call(
            "add_rms_norm",
            x.data_ptr(),
            x.stride(0),
            residual.data_ptr(),
            residual.stride(0),
            weight.data_ptr(),
            eps,
            1.0 if plus_one else 0.0,
            normed.data_ptr(),
            total.data_ptr(),
            x.shape[0],
            x.shape[1],
            self.threads,
        )

    def rope(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        positions: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
    ) -> None:
        _require_rows("q", q)
        _require_rows("k", k)
        if positions.dtype != torch.int32:
            positions = positions.int()
        fault = self._call(
            "rope",
            q.data_ptr(),
            q.stride(0),
            q.stride(1),
            q.shape[1],
            k.data_ptr(),
            k.stride(0),
            k.stride(1),
            k.shape[1],
            positions.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            cos.shape[0],
            cos.shape[1],
            q.shape[0],
            self.threads,
        )
        if fault:
            raise IndexError(f"rope: a position lies outside [0, {cos.shape[0]})")

    def gated_activation(
        self, operation: str, gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor
    ) -> None:
        for name, tensor in (("gate", gate), ("up", up), ("out", out)):
            _require_rows(name, tensor)
        self._call(
            "gated_activation",
            gate.data_ptr(),
            gate.stride(0),
            up.data_ptr(),
            up.stride(0),
            out.data_ptr(),
            out.stride(0),
            gate.shape[0],
            gate.shape[1],
            int(operation == "gelu_tanh_mul"),
            self.threads,
        )

    def store_kv(
        self,
        k: torch.Tensor,
        v: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        write_slot: torch.Tensor,
    ) -> None:
        _require_rows("k", k)
        _require_rows("v", v)
        fault = self._call(
            "store_kv",
            k.data_ptr(),
            k.stride(0),
            k.stride(1),
            v.data_ptr(),
            v.stride(0),
            v.stride(1),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            write_slot.data_ptr(),
            k_cache.shape[0],
            k.shape[0],
            k.shape[1],
            k.shape[2],
            v.shape[2],
        )
        if fault:
            raise IndexError(f"store_kv: a slot lies outside [0, {k_cache.shape[0]})")

    def paged_attention(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        query_start: torch.Tensor,
        context_len: torch.Tensor,
        block_table: torch.Tensor,
        block_tokens: int,
        scale: float,
        window: int,
        softcap: float,
        out: torch.Tensor,
    ) -> None:
        _require_rows("q", q)
        heads, kv_heads = q.shape[1], k_cache.shape[1]
        call = Attention(
            q.data_ptr(),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            out.data_ptr(),
            block_table.data_ptr(),
            q.stride(0),
            q.stride(1),
            block_table.shape[1],
            block_tokens,
            heads,
            kv_heads,
            heads // kv_heads,
            q.shape[2],
            window,
            scale,
            softcap,
        )
        fault = self._call(
            "paged_attention",
            call,
            query_start.data_ptr(),
            context_len.data_ptr(),
            context_len.shape[0],
            k_cache.shape[0],
            self.threads,
        )
        if fault:
            raise ValueError(
                "paged_attention: "
                + (
                    "a row's context is shorter than its queries or longer than its block table"
                    if fault == 2
                    else f"a block table names a block outside the {k_cache.shape[0]} slots"
                )
            )

    def lora(self, record: Lora, x: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
        _require_rows("x", x)
        _require_rows("out", out)
        fault = self._call(
            "lora",
            record,
            x.data_ptr(),
            x.stride(0),
            slots.data_ptr(),
            x.shape[0],
            out.data_ptr(),
            out.stride(0),
            self.threads,
        )
        if fault:
            raise IndexError(f"lora: a slot lies outside [0, {record.slots})")

    def philox(self, key: int, rest: tuple[int, int, int], words: np.ndarray) -> None:
        self._call(
            "philox", key, (c_uint32 * 3)(*rest), words.ctypes.data, len(words), self.threads
        )


def _require_rows(name: str, tensor: torch.Tensor) -> None:
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(f"the last axis of {name} must be contiguous")


def _described(weight: PackedWeight) -> Weight:
    """The weight's record, made once: its tensors never move."""
    record = weight.native
    if record is None:
        pointers = [None if part is None else part.data_ptr() for part in weight.parts]
        record = Weight(*pointers, *weight.shape, FORMAT_NUMBERS[weight.kind])
        weight.native = record
    return record
