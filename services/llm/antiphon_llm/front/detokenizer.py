"""Token ids to text, a few at a time: the concatenated deltas equal the whole decode."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Set

from antiphon_llm.front.tokenizer import Tokenizer


class Detokenizer:
    """Decodes one output stream.

    Bytes of a character that later tokens complete are held back. Control tokens are left out.

    Args:
        tokenizer: whose ids come.
        shown: control tokens that are text here, for a parser to read.
        from_start: the ids begin a text, so that a SentencePiece model's first space goes; False
            for output that continues a prompt.
    """

    __slots__ = ("_decode", "_hidden", "_strip", "_token_bytes")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        shown: Set[int] = frozenset(),
        from_start: bool = False,
    ) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._hidden = tokenizer.control_ids - shown if shown else tokenizer.control_ids
        self._token_bytes = tokenizer.token_bytes
        self._strip = from_start and tokenizer.strips_first_space

    def push(self, token_id: int) -> str:
        """The text that this token completes; often empty inside a multi-byte character."""
        if token_id in self._hidden:
            return ""
        raw = self._token_bytes(token_id)
        if self._strip and raw:
            self._strip = False
            if raw.startswith(b" "):
                raw = raw[1:]
        return self._decode(raw)

    def push_all(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete."""
        return "".join(map(self.push, token_ids))

    def finish(self) -> str:
        """What is left: U+FFFD where the stream ended inside a character."""
        return self._decode(b"", True)
