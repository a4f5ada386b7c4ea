"""Biasing text: what whisper takes for the text before the audio."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from antiphon_core.logs import get_logger

from antiphon_vocoder.recognition.whisper.vocabulary import Vocabulary

PROMPT_TOKENS = 223
"""Half of the 448 text positions, less the marker before it."""
_REMEMBERED = 1024

log = get_logger("recognition.prompt")


class PromptBuilder:
    """Joins keywords and prompt; ``tokens`` may be called from several threads.

    The keywords stand before the prompt, as a list of words that were said. The prompt has its
    place first; keywords are whole, in order, as many as fit beside it.

    Args:
        vocabulary: the model's tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.left_out = 0
        """Keywords that did not fit, since the start of the process; once per set of them."""
        self._vocabulary = vocabulary
        self._made: OrderedDict[tuple[str, tuple[str, ...]], list[int]] = OrderedDict()
        self._lock = threading.Lock()

    def tokens(self, prompt: str, keywords: Sequence[str]) -> list[int]:
        """At most 223 tokens, without the marker before them; of a longer prompt the last ones."""
        key = (prompt.strip(), tuple(keywords))
        with self._lock:
            if key not in self._made:
                self._made[key] = self._joined(*key)
                while len(self._made) > _REMEMBERED:
                    self._made.popitem(last=False)
            self._made.move_to_end(key)
            return self._made[key]

    def _joined(self, prompt: str, keywords: tuple[str, ...]) -> list[int]:
        end = self._vocabulary.encode_text(prompt)[-PROMPT_TOKENS:] if prompt else []
        start: list[int] = []
        for index, keyword in enumerate(keywords):
            listed = keyword.strip() + ("," if index + 1 < len(keywords) else ".")
            tokens = self._vocabulary.encode_text(listed)
            if len(start) + len(tokens) + len(end) > PROMPT_TOKENS:
                self._report(keywords[index:])
                break
            start += tokens
        return start + end

    def _report(self, keywords: Sequence[str]) -> None:
        self.left_out += len(keywords)
        log.warning("keywords_left_out", count=len(keywords), first=keywords[0])
