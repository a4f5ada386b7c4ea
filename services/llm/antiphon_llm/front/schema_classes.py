"""Classes of characters as ranges of code points, and how the grammar compiler reads them.

A class is written by the characters that it holds, never negated: behind a negated one the
compiler takes overlong UTF-8 and halves of surrogate pairs, which are no text.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""Code points from first to last, both included."""

ALL_TEXT: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
JSON_TEXT: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
"""What stands in a JSON string as it is: all but quotes, backslashes and control characters."""
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D))
"""What a dot leaves out."""
_DIGITS: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Ranges = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
    (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_SPECIAL = frozenset("\\^$.|?*+()[]{}-/")


def complement(ranges: Iterable[tuple[int, int]], universe: Ranges) -> Ranges:
    """What the universe holds besides."""
    left = list(universe)
    for low, high in ranges:
        left = [
            piece
            for first, last in left
            for piece in ((first, min(last, low - 1)), (max(first, high + 1), last))
            if piece[0] <= piece[1]
        ]
    return tuple(dict.fromkeys(left))


def within(ranges: Iterable[tuple[int, int]], universe: Ranges) -> Ranges:
    """What the universe holds of these."""
    return complement(complement(ranges, universe), universe)


NAMED: dict[str, Ranges] = {
    "d": _DIGITS,
    "w": _WORD,
    "s": _SPACE,
    "D": complement(_DIGITS, ALL_TEXT),
    "W": complement(_WORD, ALL_TEXT),
    "S": complement(_SPACE, ALL_TEXT),
}
"""What the escapes of ECMA-262 stand for."""


def write_class(ranges: Iterable[tuple[int, int]]) -> str:
    """A class of these characters, at least one."""
    return f"[{''.join(map(_span, ranges))}]"


def write_character(code: int) -> str:
    """A character for itself, inside a class or outside."""
    character = chr(code)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\{character}" if character in _SPECIAL else character


def _span(ends: tuple[int, int]) -> str:
    low, high = ends
    return write_character(low) + (f"-{write_character(high)}" if high > low else "")
