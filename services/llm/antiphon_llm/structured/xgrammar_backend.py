"""Grammars of xgrammar, over the token bytes that the front has sent.

Control tokens have no text, and xgrammar lets ids without text never through. A structural tag
may name one by its id all the same, so each gets bytes that no UTF-8 text holds: only its id
leads to it. Ids of the head beyond the vocabulary stay without bytes and are never allowed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import xgrammar

from antiphon_llm.messages import Constraint

from .backend import KINDS, GrammarError

_ORIGIN = re.compile(r"^\[[\d:]+\] \S+?:\d+: (?:Check failed: \(.*?\) is false: )?")
"""Time and source line that the library puts before what it has to say."""
_NO_TEXT = b"\xff"
"""A byte that UTF-8 never has."""


class XgrammarBackend:
    """Compiles for one tokenizer and head.

    Args:
        vocabulary: bytes of each token as it stands in text, empty for control tokens.
        width: head width V; ids from ``len(vocabulary)`` on are padding.
        end_ids: the model's own end tokens.
        whitespace: longest run of whitespace between the parts of JSON; 0 allows none.
        threads: that one compile may use.
    """

    def __init__(
        self,
        vocabulary: Sequence[bytes],
        *,
        width: int,
        end_ids: Iterable[int],
        whitespace: int,
        threads: int = 1,
    ) -> None:
        digest = hashlib.sha256(f"xgrammar {version('xgrammar')} {width} {whitespace}".encode())
        for token in vocabulary:
            digest.update(b"%d:%b" % (len(token), token))
        self.identity = digest.hexdigest()
        self._whitespace = whitespace
        known = [
            token or _NO_TEXT + str(index).encode()
            for index, token in enumerate(vocabulary[:width])
        ]
        tokenizer = xgrammar.TokenizerInfo(
            known, xgrammar.VocabType.RAW, vocab_size=width, stop_token_ids=sorted(end_ids)
        )
        # The cache is the pool's: by bytes, and with one compile per key.
        self._compiler = xgrammar.GrammarCompiler(
            tokenizer, max_threads=threads, cache_enabled=False
        )

    def compile(self, constraint: Constraint) -> XgrammarGrammar:
        """See GrammarBackend."""
        try:
            return XgrammarGrammar(self._compile(constraint.kind, constraint.source))
        except (RuntimeError, ValueError) as error:
            raise GrammarError(_ORIGIN.sub("", str(error)).strip()) from None

    def _compile(self, kind: str, source: str) -> xgrammar.CompiledGrammar:
        compiler = self._compiler
        if kind == "json_schema":
            return self._compile_schema(source)
        if kind == "json_object":
            # The library's own JSON grammar takes arrays, and whitespace without end.
            return self._compile_schema('{"type":"object"}')
        if kind == "regex":
            return compiler.compile_regex(source)
        if kind == "choice":
            return compiler.compile_structural_tag(_choice_tag(json.loads(source)))
        if kind == "ebnf":
            return compiler.compile_grammar(source)
        if kind == "structural_tag":
            return compiler.compile_structural_tag(source)
        raise GrammarError(f"constraint kind {kind!r} is not one of {', '.join(KINDS)}")

    def _compile_schema(self, source: str) -> xgrammar.CompiledGrammar:
        """``strict_mode`` would forbid what the schema leaves open."""
        if not self._whitespace:
            return self._compiler.compile_json_schema(
                source, any_whitespace=False, separators=(",", ":"), strict_mode=False
            )
        return self._compiler.compile_json_schema(
            source, strict_mode=False, max_whitespace_cnt=self._whitespace
        )


@dataclass(frozen=True, slots=True)
class XgrammarGrammar:
    """See Grammar."""

    compiled: xgrammar.CompiledGrammar

    @property
    def nbytes(self) -> int:
        """See Grammar."""
        return self.compiled.memory_size_bytes

    def matcher(self, end_ids: list[int]) -> XgrammarMatcher:
        """See Grammar."""
        return XgrammarMatcher(xgrammar.GrammarMatcher(self.compiled, override_stop_tokens=end_ids))


class XgrammarMatcher:
    """See Matcher."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self._matcher = matcher

    @property
    def ended(self) -> bool:
        """See Matcher."""
        return self._matcher.is_terminated()

    def fill(self, words: np.ndarray) -> None:
        """See Matcher."""
        self._matcher.fill_next_token_bitmask(words.view(np.int32).reshape(1, -1))

    def accept(self, token: int) -> bool:
        """See Matcher."""
        return self._matcher.accept_token(token)

    def rollback(self, count: int) -> None:
        """See Matcher."""
        self._matcher.rollback(count)


def _choice_tag(values: Sequence[str]) -> dict[str, Any]:
    texts = [{"type": "const_string", "value": value} for value in values]
    form = {"type": "or", "elements": texts} if len(texts) > 1 else texts[0]
    return {"type": "structural_tag", "format": form}
