"""A grammar backend over single bytes, and what the tests of structured output ask of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from antiphon_llm.messages import Constraint
from antiphon_llm.sampler.window import mask_words
from antiphon_llm.structured.backend import Grammar, Matcher
from antiphon_llm.structured.xgrammar_backend import XgrammarBackend

END, CONTROL = 256, 257
BYTES = [bytes([value]) for value in range(256)] + [b"", b""]
"""Every byte, an end token and another control token."""
WIDTH = 270
"""Of a head with padding."""
ORDERS = 120


def byte_backend(whitespace: int = 16) -> XgrammarBackend:
    return XgrammarBackend(BYTES, width=WIDTH, end_ids=[END], whitespace=whitespace)


def ids_of(matcher: Matcher, width: int = WIDTH) -> set[int]:
    """The ids that may come next."""
    words = np.empty(mask_words(width), dtype=np.uint32)
    matcher.fill(words)
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:width]).tolist())


def takes(grammar: Grammar, text: str) -> bool:
    """Whether the grammar takes this text as a whole, byte by byte and then the end."""
    matcher = grammar.matcher([END])
    return all(map(matcher.accept, text.encode("utf-8", "surrogatepass"))) and matcher.accept(END)


def schema_grammar(backend: XgrammarBackend, source: str) -> Grammar:
    return backend.compile(Constraint(kind="json_schema", source=source))


def spellings(value: Any) -> Iterator[str]:
    """Texts of a value: names in every order (a grammar has one), with and without blanks."""
    for ordered in itertools.islice(_orders(value), ORDERS):
        yield json.dumps(ordered, ensure_ascii=False)
        yield json.dumps(ordered, ensure_ascii=False, separators=(",", ":"))


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for values in itertools.product(*(list(_orders(value[name])) for name in names)):
                yield dict(zip(names, values, strict=True))
    elif isinstance(value, list):
        for values in itertools.product(*map(list, map(_orders, value))):
            yield list(values)
    else:
        yield value
