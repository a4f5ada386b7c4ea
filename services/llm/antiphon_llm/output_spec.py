"""Which of a model's token ids are speech codes, as its ``config.json`` declares it.

Front and engine each read it from the same file: the one to sort tokens into text and frames of
codes, the other to keep replies that nobody asked to hear free of them. Imports nothing of either.

A speech model's config has an object ``antiphon_output``::

    {
      "codec": "mimi",
      "frame_rate": 12.5,
      "layout": "interleaved",
      "codebook_size": 2048,
      "first_code_ids": [32000, 34048],
      "start_id": 31998,
      "end_id": 31999
    }

Code c of codebook q is the token ``first_code_ids[q] + c``, so the list's length is the number of
codebooks; codebooks may share one range, then the place in the frame tells them apart. The codec
is named as the vocoder service serves it; empty takes its first. Both markers may be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

KEY = "antiphon_output"
LAYOUTS = ("interleaved",)
"""``interleaved``: frame after frame, in each one token a codebook, the lowest codebook first."""
CODEBOOK_LIMIT = 64
FRAME_RATE_LIMIT = 1000.0

_REQUIRED = ("frame_rate", "codebook_size", "first_code_ids")
_OPTIONAL = ("codec", "layout", "start_id", "end_id")


class OutputSpecError(ValueError):
    """``antiphon_output`` in a config.json does not describe an output."""


@dataclass(frozen=True)
class OutputSpec:
    """The speech side of a vocabulary.

    Attributes:
        codec: name of the codec that the codes belong to; empty for the vocoder's first.
        frame_rate: frames a second.
        codebook_size: codes of each codebook, C.
        first_code_ids: id of code 0 of each of the Q codebooks; two ranges are equal or disjoint.
        markers: ids of the tokens before and behind a run of speech, which are not shown.
    """

    codec: str
    frame_rate: float
    codebook_size: int
    first_code_ids: tuple[int, ...]
    markers: frozenset[int] = frozenset()

    @property
    def codebook_count(self) -> int:
        """Codebooks Q: tokens of a frame."""
        return len(self.first_code_ids)

    @cached_property
    def code_ids(self) -> frozenset[int]:
        """Ids of the codes of all codebooks."""
        return frozenset(
            first + code for first in set(self.first_code_ids) for code in range(self.codebook_size)
        )

    @cached_property
    def speech_ids(self) -> tuple[int, ...]:
        """Ids that a reply of text alone never has: codes and markers, ascending."""
        return tuple(sorted(self.code_ids | self.markers))


def read_output_spec(config: Mapping[str, Any], vocabulary: int | None = None) -> OutputSpec | None:
    """The output spec of a model; None for one that writes text only.

    Args:
        config: of the checkpoint.
        vocabulary: ids that the model's head has; None does not check against it.

    Raises:
        OutputSpecError: naming the key and what it may hold.
    """
    found = config.get(KEY)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise OutputSpecError(f"{KEY} must be an object")
    unknown = sorted(set(found) - set(_REQUIRED) - set(_OPTIONAL))
    if unknown:
        raise OutputSpecError(
            f"{KEY}.{unknown[0]} is not known; keys are {', '.join((*_REQUIRED, *_OPTIONAL))}"
        )
    missing = [key for key in _REQUIRED if key not in found]
    if missing:
        raise OutputSpecError(f"{KEY}.{missing[0]} is required")
    codec, layout = found.get("codec", ""), found.get("layout", LAYOUTS[0])
    if not isinstance(codec, str):
        raise OutputSpecError(f"{KEY}.codec must be the name of a codec")
    if layout not in LAYOUTS:
        raise OutputSpecError(f"{KEY}.layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")
    rate = found["frame_rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise OutputSpecError(f"{KEY}.frame_rate must be a number")
    if not 0 < rate <= FRAME_RATE_LIMIT:
        raise OutputSpecError(f"{KEY}.frame_rate is {rate}; allowed: above 0 to {FRAME_RATE_LIMIT}")
    size = _whole(found["codebook_size"], "codebook_size", 1)
    spec = OutputSpec(
        codec, float(rate), size, _firsts(found["first_code_ids"], size), _marks(found)
    )
    _check_ids(spec, vocabulary)
    return spec


def _firsts(value: object, size: int) -> tuple[int, ...]:
    name = "first_code_ids"
    if not isinstance(value, list) or not 1 <= len(value) <= CODEBOOK_LIMIT:
        raise OutputSpecError(f"{KEY}.{name} must be a list of 1 to {CODEBOOK_LIMIT} ids")
    firsts = tuple(_whole(item, f"{name}[{place}]", 0) for place, item in enumerate(value))
    ordered = sorted(set(firsts))
    for lower, upper in pairwise(ordered):
        if upper - lower < size:
            raise OutputSpecError(
                f"{KEY}.{name}: the ranges from {lower} and {upper} overlap; with codebook_size "
                f"{size} they must be equal or {size} apart"
            )
    return firsts


def _marks(found: Mapping[str, Any]) -> frozenset[int]:
    names = ("start_id", "end_id")
    return frozenset(_whole(found[key], key, 0) for key in names if found.get(key) is not None)


def _whole(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OutputSpecError(f"{KEY}.{name} is {value!r}; allowed: whole numbers from {least}")
    return value


def _check_ids(spec: OutputSpec, vocabulary: int | None) -> None:
    both = sorted(spec.markers & spec.code_ids)
    if both:
        raise OutputSpecError(f"{KEY}: the id {both[0]} is a marker and a code")
    highest = spec.speech_ids[-1]
    if vocabulary is not None and highest >= vocabulary:
        raise OutputSpecError(
            f"{KEY}: the id {highest} is outside the model's vocabulary 0 to {vocabulary - 1}"
        )
