"""The C interface of the native kernels, as their sources declare it."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p

FORMAT_NUMBERS = {
    kind: number
    for number, kind in enumerate(
        ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
    )
}
"""As in formats.h."""


class Weight(Structure):
    _fields_ = (
        ("codes", c_void_p),
        ("high_bits", c_void_p),
        ("scales", c_void_p),
        ("mins", c_void_p),
        ("rows", c_int64),
        ("columns", c_int64),
        ("format", c_int32),
    )


class Attention(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("q", "k_cache", "v_cache", "out", "block_table")),
        *(
            (name, c_int64)
            for name in (
                "q_row", "q_head", "table_width", "block_tokens", "heads", "kv_heads", "group",
                "dim", "window",
            )
        ),
        ("scale", c_float),
        ("softcap", c_float),
    )  # fmt: skip


class LoraPart(Structure):
    _fields_ = (("a", c_void_p), ("b", c_void_p), ("rank", c_int64))


class Lora(Structure):
    _fields_ = (
        ("parts", c_void_p),
        ("sizes", c_void_p),
        *((name, c_int64) for name in ("count", "slots", "depth")),
    )


_POINTER_AND_STRIDE = (c_void_p, c_int64)
_POINTER_AND_STRIDES = (c_void_p, c_int64, c_int64)
_ROTATED = (*_POINTER_AND_STRIDES, c_int64)
_NORM = (c_void_p, c_float, c_float)
_PRODUCT = (
    POINTER(Weight), *_POINTER_AND_STRIDE, c_int64, c_void_p, *_POINTER_AND_STRIDE, c_int,
)  # fmt: skip
SIGNATURES = {
    "quant_linear": (c_int, _PRODUCT),
    "quant_linear_int16": (c_int, _PRODUCT),
    "pack": (c_int, (c_void_p, POINTER(Weight), c_int)),
    "gather_rows": (c_int, (POINTER(Weight), *_POINTER_AND_STRIDE, c_void_p, c_int)),
    "rms_norm": (
        None,
        (*_POINTER_AND_STRIDES, *_NORM, *_POINTER_AND_STRIDES, c_int64, c_int64, c_int64, c_int),
    ),
    "add_rms_norm": (
        None,
        (
            *_POINTER_AND_STRIDE, *_POINTER_AND_STRIDE, *_NORM,
            c_void_p, c_void_p, c_int64, c_int64, c_int,
        ),
    ),
    "rope": (
        c_int,
        (
            *_ROTATED, *_ROTATED, c_void_p, c_void_p, c_void_p,
            c_int64, c_int64, c_int64, c_int,
        ),
    ),
    "gated_activation": (
        None,
        (
            *_POINTER_AND_STRIDE, *_POINTER_AND_STRIDE, *_POINTER_AND_STRIDE,
            c_int64, c_int64, c_int, c_int,
        ),
    ),
    "store_kv": (
        c_int,
        (
            *_POINTER_AND_STRIDES, *_POINTER_AND_STRIDES, c_void_p, c_void_p, c_void_p,
            c_int64, c_int64, c_int64, c_int64, c_int64,
        ),
    ),
    "paged_attention": (
        c_int,
        (POINTER(Attention), c_void_p, c_void_p, c_int64, c_int64, c_int),
    ),
    "lora": (
        c_int,
        (POINTER(Lora), *_POINTER_AND_STRIDE, c_void_p, c_int64, *_POINTER_AND_STRIDE, c_int),
    ),
    "philox": (None, (c_uint64, c_void_p, c_void_p, c_int64, c_int)),
    "byte_product_peak": (c_int64, (c_int64, c_int)),
    "run_program": (c_int64, (c_void_p, c_int64)),
}  # fmt: skip
