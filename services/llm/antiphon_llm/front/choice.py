"""One choice of a request: its tokens become text, reasoning and calls, up to its stop string."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from antiphon_core.errors import Internal

from antiphon_llm.front.detokenizer import Detokenizer
from antiphon_llm.front.events import Delta, TokenAlternative, TokenLogprob, ToolCallPiece
from antiphon_llm.front.output import PLAIN, OutputPlan
from antiphon_llm.front.parsing.pieces import Arguments, CallOpened, Content, Piece, Thought
from antiphon_llm.front.requests import OutputOptions, StopOptions
from antiphon_llm.front.speech_codes import SpeechCodes
from antiphon_llm.front.stops import StopScanner
from antiphon_llm.front.tokenizer import Tokenizer
from antiphon_llm.messages import Reasoning, TopLogprobs
from antiphon_llm.reasoning import ReasoningMachine


class Choice:
    """Collects output until the reader takes it, so that a slow reader gets larger pieces.

    The token that ends an output is counted but not shown.
    """

    __slots__ = (
        "_calls",
        "_calls_begun",
        "_count",
        "_detokenizer",
        "_ids",
        "_logprobs",
        "_parser",
        "_reasoning",
        "_reasoning_ids",
        "_speech",
        "_stops",
        "_text",
        "_thoughts",
        "_tokenizer",
        "_wants_ids",
        "_wants_logprobs",
        "index",
        "output_tokens",
        "reason",
        "stop_token_id",
    )

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        stop: StopOptions,
        output: OutputOptions,
        reasoning: Reasoning | None = None,
        plan: OutputPlan = PLAIN,
    ) -> None:
        self.index = index
        self.output_tokens = 0
        self.reason = ""
        """Why it ended; empty while it runs."""
        self.stop_token_id = -1
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, shown=plan.shown)
        self._stops = StopScanner(stop.strings, include_stop=stop.include_stop)
        self._reasoning = reasoning
        self._reasoning_ids: list[int] = []
        self._wants_ids = output.token_ids
        self._wants_logprobs = output.logprobs is not None
        self._parser = plan.parser()
        self._speech = None if plan.speech is None else SpeechCodes(plan.speech)
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[ToolCallPiece] = []
        self._calls_begun = 0
        self._count = 0
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    @property
    def stop_string(self) -> str:
        """The stop string that matched, or empty."""
        return self._stops.matched or ""

    def push(self, token_id: int, logprob: float, top: TopLogprobs | None) -> bool:
        """Takes one drawn token; True when it completed a stop string.

        Raises:
            Internal: the token has no log-probability although the request asked for them.
        """
        self.output_tokens += 1
        self._count += 1
        if self._reasoning is not None:
            self._reasoning_ids.append(token_id)
        if self._wants_ids:
            self._ids.append(token_id)
        if self._wants_logprobs:
            if top is None:
                raise Internal(f"output token {self.output_tokens} came without log-probability")
            self._logprobs.append(token_logprob(self._tokenizer, token_id, logprob, top))
        if self._speech is not None and self._speech.push(token_id):
            return False
        text = self._stops.push(self._detokenizer.push(token_id))
        if text:
            self._show(text)
        return self._stops.matched is not None

    @property
    def audio_tokens(self) -> int | None:
        """Speech codes so far; None where text alone was asked for."""
        return None if self._speech is None else self._speech.token_count

    def reasoning_tokens(self) -> int:
        """Reasoning tokens of what came so far, -1 without a block: for an end that the engine
        does not know of."""
        if self._reasoning is None:
            return -1
        machine = ReasoningMachine(self._reasoning)
        state = machine.replay(self._reasoning_ids)
        return machine.tokens(state, len(self._reasoning_ids))

    def count_stop_token(self, token_id: int) -> None:
        """The token that ended the output."""
        self.output_tokens += 1
        self.stop_token_id = token_id

    def finish(self, reason: str) -> None:
        """Ends the choice and releases held text; a pending stop string decides the reason."""
        if self.reason:
            return
        if self._speech is not None:
            self._speech.finish()
        tail = self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        if tail:
            self._show(tail)
        self.reason = "stop" if self._stops.matched is not None else reason
        if self._parser is not None:
            self._sort(self._parser.finish(cut=self.reason != "stop"))
            if self._parser.calls and self.reason == "stop":
                self.reason = "tool_calls"

    def take(self) -> Delta | None:
        """What came since the last call; without new text only at the end."""
        codes = None if self._speech is None else self._speech.take()
        found = self._text or self._thoughts or self._calls or codes
        if not found and not (self.reason and self._count):
            return None
        delta = Delta(
            self.index,
            "".join(self._text),
            self._count,
            self._ids,
            self._logprobs,
            "".join(self._thoughts),
            self._calls,
            codes,
        )
        self._text, self._count, self._ids, self._logprobs = [], 0, [], []
        self._thoughts, self._calls = [], []
        return delta

    def _show(self, text: str) -> None:
        if self._parser is None:
            self._text.append(text)
        else:
            self._sort(self._parser.push(text))

    def _sort(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, Content):
                self._text.append(piece.text)
            elif isinstance(piece, Thought):
                self._thoughts.append(piece.text)
            elif isinstance(piece, CallOpened):
                self._calls_begun += 1
                self._calls.append(ToolCallPiece(self._calls_begun - 1, _call_id(), piece.name))
            elif isinstance(piece, Arguments):
                self._add_arguments(piece.text)

    def _add_arguments(self, text: str) -> None:
        if self._calls:
            self._calls[-1].arguments += text
        else:
            self._calls.append(ToolCallPiece(self._calls_begun - 1, arguments=text))


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def token_logprob(
    tokenizer: Tokenizer, token_id: int, logprob: float, top: TopLogprobs
) -> TokenLogprob:
    """A token with its log-probability and alternatives, bytes filled in."""
    alternatives = [
        TokenAlternative(other, tokenizer.token_bytes(other), value)
        for other, value in zip(top.token_ids, top.logprobs, strict=True)
    ]
    return TokenLogprob(token_id, tokenizer.token_bytes(token_id), logprob, alternatives, top.rank)


def prompt_token_logprobs(
    tokenizer: Tokenizer, prompt_ids: list[int], scored: list[TopLogprobs | None]
) -> list[TokenLogprob]:
    """One item per prompt token. In ``scored`` the prompt's own token stands first."""
    items = []
    for token_id, top in zip(prompt_ids, scored, strict=True):
        if top is None:
            items.append(TokenLogprob(token_id, tokenizer.token_bytes(token_id), 0.0))
            continue
        others = TopLogprobs(top.token_ids[1:], top.logprobs[1:], top.rank)
        items.append(token_logprob(tokenizer, token_id, top.logprobs[0], others))
    return items
