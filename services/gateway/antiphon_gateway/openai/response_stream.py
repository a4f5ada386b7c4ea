"""Turns a generation into output items and the events that tell of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon_core.errors import Internal
from msgspec import UNSET

from antiphon_gateway.domain import generation
from antiphon_gateway.openai import response_output as events
from antiphon_gateway.openai.chat_output import TokenLogprob, encode, logprobs_of
from antiphon_gateway.openai.response_items import (
    FunctionCallItem,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
    item_id,
)
from antiphon_gateway.openai.response_output import OutputItem, Response, event_frame

_TERMINALS: dict[str, type[events.ResponseEvent]] = {
    "completed": events.Completed,
    "failed": events.Failed,
    "incomplete": events.Incomplete,
    "cancelled": events.Incomplete,
}


class ResponseStream:
    """Builds a response's output, an item at a time; each method returns the frames to send.

    Text deltas, the hot events, are byte halves around the escaped text; everything else goes
    through the generic encoder. Both give the same bytes for the same event.

    Args:
        response: whose ``output`` grows.
        first_item: number of the first output item among all items of the response.
        with_logprobs: whether text carries log-probabilities.
    """

    def __init__(self, response: Response, *, first_item: int, with_logprobs: bool) -> None:
        self._response = response
        self._first_item = first_item
        self._with_logprobs = with_logprobs
        self._sequence = 0
        self._open: OutputItem | None = None
        self._pieces: list[str] = []
        """Of the open item."""
        self._logprobs: list[TokenLogprob] = []
        """Of the open message."""
        self._unsent_logprobs: list[TokenLogprob] = []
        """Of tokens whose text is held back."""
        self._blank = ""
        """White space after a call, which is text only if more text follows."""
        self._call_index = -1
        self._text_frame = (b"", b"", b"")

    def begin(self) -> bytes:
        """The first events: the response exists, and is worked on."""
        return self._event(events.Created, response=self._response) + self._event(
            events.InProgress, response=self._response
        )

    def delta(self, event: generation.Delta) -> bytes:
        """New output.

        Raises:
            Internal: the service went back to a call that was over.
        """
        frames = b""
        if event.reasoning:
            frames += self._reason(event.reasoning)
        # Without text of its own a delta's tokens are reasoning, a call, or text held back.
        is_other = not event.text and bool(event.reasoning or event.tool_calls)
        if self._with_logprobs and event.logprobs and not is_other:
            self._unsent_logprobs += logprobs_of(event.logprobs).content
        if event.text:
            frames += self._say(event.text)
        for piece in event.tool_calls:
            frames += self._call(piece)
        return frames

    def end(self, status: Status) -> bytes:
        """Closes what is open; a whole response without any answer gets an empty message."""
        frames = b""
        answers = (MessageItem, FunctionCallItem)
        has_answer = any(isinstance(item, answers) for item in self._response.output)
        if status == "completed" and not has_answer:
            frames += self._begin_message()
        return frames + self._close(status)

    def terminal(self) -> bytes:
        """The last event, by the response's status."""
        return self._event(_TERMINALS[self._response.status], response=self._response)

    def _reason(self, text: str) -> bytes:
        frames, self._blank = b"", ""
        if not isinstance(self._open, ReasoningItem):
            item = ReasoningItem(id=self._next_id(ReasoningItem), content=[], status="in_progress")
            frames = self._begin(item) + self._add_part(ReasoningText(text=""))
        self._pieces.append(text)
        self._unsent_logprobs.clear()
        return frames + self._event(events.ReasoningDelta, delta=text, **self._place())

    def _say(self, text: str) -> bytes:
        if isinstance(self._open, FunctionCallItem) and (self._blank + text).isspace():
            self._blank += text
            return b""
        frames = b"" if isinstance(self._open, MessageItem) else self._begin_message()
        text, self._blank = self._blank + text, ""
        self._pieces.append(text)
        if not self._unsent_logprobs:
            head, middle, tail = self._text_frame
            number = b"%d" % self._next()
            return b"".join((frames, head, number, middle, encode(text), tail))
        logprobs, self._unsent_logprobs = self._unsent_logprobs, []
        self._logprobs += logprobs
        return frames + self._event(
            events.TextDelta, delta=text, logprobs=logprobs, **self._place()
        )

    def _call(self, piece: generation.ToolCallDelta) -> bytes:
        frames = b""
        if piece.index != self._call_index or not isinstance(self._open, FunctionCallItem):
            if piece.index <= self._call_index:
                raise Internal("the llm service went back to a tool call that was over")
            self._call_index = piece.index
            self._blank = ""
            item = FunctionCallItem(
                id=self._next_id(FunctionCallItem),
                call_id=piece.id,
                name=piece.name,
                arguments="",
                status="in_progress",
            )
            frames = self._begin(item)
        self._unsent_logprobs.clear()
        if piece.arguments:
            self._pieces.append(piece.arguments)
            place = self._place()
            frames += self._event(events.ArgumentsDelta, delta=piece.arguments, **place)
        return frames

    def _begin_message(self) -> bytes:
        item = MessageItem(
            id=self._next_id(MessageItem), role="assistant", content=[], status="in_progress"
        )
        frames = self._begin(item) + self._add_part(self._output_text("", []))
        marked = event_frame(events.TextDelta(sequence_number=-1, delta="\x00", **self._place()))
        head, _, rest = marked.partition(b"-1")
        middle, _, tail = rest.partition(encode("\x00"))
        self._text_frame = (head, middle, tail)
        return frames

    def _begin(self, item: OutputItem) -> bytes:
        frames = self._close("completed")
        self._open = item
        self._response.output.append(item)
        return frames + self._event(events.ItemAdded, item=item, output_index=self._index)

    def _add_part(self, part: events.OutputPart) -> bytes:
        return self._event(events.PartAdded, part=part, **self._place())

    def _close(self, status: Status) -> bytes:
        item, text = self._open, "".join(self._pieces)
        if item is None:
            return b""
        place = self._place()
        if isinstance(item, FunctionCallItem):
            item.arguments = text
            frames = self._event(events.ArgumentsDone, name=item.name, arguments=text, **place)
        elif isinstance(item, ReasoningItem):
            part = ReasoningText(text=text)
            item.content = [part]
            frames = self._event(events.ReasoningDone, text=text, **place)
            frames += self._event(events.PartDone, part=part, **place)
        else:
            logprobs = self._logprobs + self._unsent_logprobs
            self._unsent_logprobs = []
            part = self._output_text(text, logprobs)
            item.content = [part]
            frames = self._event(events.TextDone, text=text, logprobs=logprobs, **place)
            frames += self._event(events.PartDone, part=part, **place)
        item.status = status
        frames += self._event(events.ItemDone, item=item, output_index=self._index)
        self._open, self._pieces, self._logprobs = None, [], []
        return frames

    def _output_text(self, text: str, logprobs: Sequence[TokenLogprob]) -> OutputText:
        return OutputText(text=text, logprobs=list(logprobs) if self._with_logprobs else UNSET)

    @property
    def _index(self) -> int:
        """Of the open item in the output."""
        return len(self._response.output) - 1

    def _place(self) -> dict[str, Any]:
        assert self._open is not None and isinstance(self._open.id, str)
        return {"item_id": self._open.id, "output_index": self._index}

    def _next_id(self, kind: type[OutputItem]) -> str:
        number = self._first_item + len(self._response.output)
        return item_id(kind, self._response.id, number)

    def _next(self) -> int:
        number = self._sequence
        self._sequence += 1
        return number

    def _event(self, kind: type[events.Event], **fields: object) -> bytes:
        return event_frame(kind(sequence_number=self._next(), **fields))
