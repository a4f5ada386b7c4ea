# pyright: reportGeneralTypeIssues=false
# Triton declares functions that return tuples as returning nothing.
"""Device functions of the draw: noise, masses, and the order of floats as integers."""

from __future__ import annotations

import triton
import triton.language as tl

_SQRT_HALF_BITS = tl.constexpr(0x3F3504F3)
_LARGEST_UNIFORM = tl.constexpr(1.0 - 2.0**-24)
_MASS_BITS = tl.constexpr(44)
"""Fixed-point bits of a mass, at most 1: 2**18 of them stay below 2**63."""
LOWEST_KEY = tl.constexpr(-0x7F800001)
"""The order key of -inf."""


@triton.jit
def order_key(values):
    """int32 keys whose order is that of fp32 values, -0 below +0; its own inverse on bits."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of_key(keys):
    """The fp32 value of an int32 order key that is at least LOWEST_KEY."""
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _log_of_one_plus(fraction, exponent):
    """ln(2^exponent (1 + fraction)), fp32, for 1 + fraction in [sqrt(1/2), sqrt(2)).

    The polynomial of the Cephes library's logf; errs by about one ulp.
    """
    square = fraction * fraction
    tail = fraction * 7.0376836292e-2 - 1.1514610310e-1
    tail = tail * fraction + 1.1676998740e-1
    tail = tail * fraction - 1.2420140846e-1
    tail = tail * fraction + 1.4249322787e-1
    tail = tail * fraction - 1.6668057665e-1
    tail = tail * fraction + 2.0000714765e-1
    tail = tail * fraction - 2.4999993993e-1
    tail = tail * fraction + 3.3333331174e-1
    tail = tail * fraction * square
    tail = tail - exponent * 2.12194440e-4
    tail = tail - 0.5 * square
    return (fraction + tail) + exponent * 0.693359375


@triton.jit
def _split(values):
    """(fraction, exponent), both fp32, of positive normal values: 2^exponent (1 + fraction)."""
    bits = values.to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    fraction = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    return fraction, exponent.to(tl.float32)


@triton.jit
def gumbel_of_words(words):
    """Standard Gumbel noise, fp32, of uint32 words: ``-ln(-log1p(-w))``, ``w = (x + .5) 2^-32``.

    Every fraction handed to the polynomial is exact, so the result differs from that of a
    correctly rounded log1p and log by a few ulps at most.
    """
    uniform = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform = tl.minimum(uniform, _LARGEST_UNIFORM)
    fraction, exponent = _split(1.0 - uniform)
    below_half = uniform < 0.5
    near_zero = uniform < 0.29289323
    fraction = tl.where(below_half, 1.0 - 2.0 * uniform, fraction)
    exponent = tl.where(below_half, -1.0, exponent)
    fraction = tl.where(near_zero, -uniform, fraction)
    exponent = tl.where(near_zero, 0.0, exponent)
    exponential = -_log_of_one_plus(fraction, exponent)
    fraction, exponent = _split(exponential)
    return -_log_of_one_plus(fraction, exponent)


@triton.jit
def _words(counters, key, position, choice):
    """The four Philox4x32-10 words, uint32, of int32 counters (id >> 2)."""
    zero = counters * 0
    return tl.philox(key, counters, zero + position, zero, zero + choice)


@triton.jit
def words_of_block(start, key, position, choice, BLOCK: tl.constexpr):
    """Words (BLOCK) of the ids from ``start`` on, a multiple of 4; uses all four of a counter."""
    counters = start // 4 + tl.arange(0, BLOCK // 4)
    first, second, third, fourth = _words(counters, key, position, choice)
    return tl.interleave(tl.interleave(first, third), tl.interleave(second, fourth))


@triton.jit
def _rough_log2(values, NATIVE: tl.constexpr):
    if NATIVE:
        logarithm = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [values], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        logarithm = tl.log2(values)
    return logarithm


@triton.jit
def rough_gumbel_of_words(words, NATIVE: tl.constexpr):
    """The noise of words to within 1e-4, at a fraction of the work.

    Below 1/32 three terms of the series stand for the exponential, whose end must be fine.
    """
    uniform = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform = tl.minimum(uniform, _LARGEST_UNIFORM)
    series = uniform + uniform * uniform * (0.5 + uniform * 0.33333333)
    exponential = _rough_log2(1.0 - uniform, NATIVE) * -0.69314718
    exponential = tl.where(uniform < 0.03125, series, exponential)
    return _rough_log2(exponential, NATIVE) * -0.69314718


@triton.jit
def noise_of_ids(ids, key, position, choice):
    """Noise of arbitrary int32 ids."""
    first, second, third, fourth = _words(ids >> 2, key, position, choice)
    lane = ids & 3
    low = tl.where(lane == 0, first, second)
    high = tl.where(lane == 2, third, fourth)
    return gumbel_of_words(tl.where(lane < 2, low, high))


@triton.jit
def mass_of(depths):
    """``e^depths`` of fp32 depths <= 0 as int64 in units of 2^-44: sums in any order are equal.

    The polynomial of the Cephes library's expf; masses below 2^-45 are 0. Explicit fused steps,
    so that every kernel gives a score the same mass.
    """
    depths = tl.maximum(depths, -64.0)
    whole = tl.floor(tl.fma(depths, 1.44269504, 0.5))
    rest = tl.fma(whole, -0.693359375, depths)
    rest = tl.fma(whole, 2.12194440e-4, rest)
    power = tl.fma(rest, 1.9875691500e-4, 1.3981999507e-3)
    power = tl.fma(power, rest, 8.3334519073e-3)
    power = tl.fma(power, rest, 4.1665795894e-2)
    power = tl.fma(power, rest, 1.6666665459e-1)
    power = tl.fma(power, rest, 5.0000001201e-1)
    power = tl.fma(power * rest, rest, rest) + 1.0
    scale = ((whole.to(tl.int32) + (127 + _MASS_BITS)) << 23).to(tl.float32, bitcast=True)
    return tl.fma(power, scale, 0.5).to(tl.int64)
