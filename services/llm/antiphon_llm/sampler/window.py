"""What a request's processors rule over the positions of one window: allowed ids, forced ids."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def mask_words(vocabulary: int) -> int:
    """Words of 32 bits that hold one bit for each id."""
    return -(-vocabulary // 32)


def words_of(ids: Iterable[int], vocabulary: int) -> np.ndarray:
    """uint32 (ceil(V/32)) with the bits of these ids set, bit ``id & 31`` of word ``id >> 5``."""
    bits = np.zeros(mask_words(vocabulary) * 32, dtype=bool)
    bits[np.fromiter(ids, dtype=np.int64)] = True
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


class Window:
    """Rules for the W positions that one row draws in one step; position 0 is the next token.

    Attributes:
        mask: uint32 (W, ceil(V/32)), a set bit allows its id; None while nothing is barred.
        forced: int32 (W), the only id that may be drawn, -1 where none is forced. It goes over
            the mask. Its logit becomes a finite constant, since the model may have given it
            -inf, and all others -inf.
    """

    __slots__ = ("forced", "mask", "vocabulary")

    def __init__(self, width: int, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.mask: np.ndarray | None = None
        self.forced = np.full(width, -1, dtype=np.int32)

    @property
    def width(self) -> int:
        """Positions W."""
        return len(self.forced)

    @property
    def free(self) -> bool:
        """Whether nothing is barred or forced anywhere."""
        return self.mask is None and bool((self.forced < 0).all())

    def keep(self, place: int, words: np.ndarray) -> None:
        """Allows at a position only ids of these words, uint32 (ceil(V/32))."""
        row = self._row(place)
        np.bitwise_and(row, words, out=row)

    def bar(self, place: int, ids: Iterable[int]) -> None:
        """Rules these ids out at a position."""
        row = self._row(place)
        for token in ids:
            row[token >> 5] &= np.uint32(~(1 << (token & 31)) & 0xFFFFFFFF)

    def force(self, place: int, token: int) -> None:
        """Makes this id the only one at a position."""
        self.forced[place] = token

    def barred(self, place: int) -> np.ndarray | None:
        """bool (V), True where the mask rules an id out; None without a mask."""
        if self.mask is None:
            return None
        bits = np.unpackbits(
            self.mask[place].astype("<u4", copy=False).view(np.uint8),
            count=self.vocabulary,
            bitorder="little",
        )
        return bits == 0

    def _row(self, place: int) -> np.ndarray:
        if self.mask is None:
            shape = (self.width, mask_words(self.vocabulary))
            self.mask = np.full(shape, 0xFFFFFFFF, dtype=np.uint32)
        return self.mask[place]
