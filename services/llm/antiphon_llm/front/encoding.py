"""From any form of prompt to token ids, off the event loop where it takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from antiphon_core.errors import InvalidArgument

from antiphon_llm.front.conversation import Conversation
from antiphon_llm.front.model import TextModel
from antiphon_llm.front.output import OutputPlan, plan_output
from antiphon_llm.front.pairs import PairPrompts
from antiphon_llm.front.parsing.reasoning import Opening
from antiphon_llm.front.requests import ChatInput, GenerationRequest, PromptInput
from antiphon_llm.front.tools import template_tools

INLINE_CHARACTERS = 4000
"""Shorter inputs are rendered and tokenised on the event loop: a thread hop costs more."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class EncodedPrompt:
    """Ids of an input; ``rendered`` is the template's text for chat input."""

    ids: list[int]
    rendered: str = ""
    opening: Opening = "closed"
    """Where the output begins: inside a reasoning trace, behind it, or perhaps before it."""


class PromptEncoder:
    """Renders and tokenises for one model; all callers get the same ids for the same input."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="text")

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def encode(
        self, prompt: PromptInput, *, omit_special_tokens: bool = False
    ) -> EncodedPrompt:
        """Ids of a checked input.

        Args:
            prompt: messages, text or ids.
            omit_special_tokens: leave out the begin and end tokens that plain text gets.

        Raises:
            InvalidArgument: TEMPLATE_ERROR, UNSUPPORTED_OPTION.
        """
        if isinstance(prompt, ChatInput):
            conversation = prompt.conversation
            size = sum(len(text) for message in conversation.messages for text in message.texts)
            size += prompt.tools.size
            return await self._compute(lambda: self._encode_chat(prompt), size)
        if isinstance(prompt, str):
            return await self._compute(
                lambda: EncodedPrompt(
                    self._text.tokenizer.encode(prompt, add_special_tokens=not omit_special_tokens)
                ),
                len(prompt),
            )
        return EncodedPrompt(list(prompt))

    async def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of plain texts, with the begin and end tokens that they get."""
        encode = self._text.tokenizer.encode_all
        return await self._compute(lambda: encode(texts), sum(map(len, texts)))

    async def encode_pairs(
        self, prompts: PairPrompts, pairs: Sequence[tuple[str, str]]
    ) -> list[list[int]]:
        """Ids of one prompt for each pair.

        Raises:
            InvalidArgument: TEMPLATE_ERROR.
        """
        size = sum(len(text) for pair in pairs for text in pair)
        return await self._compute(lambda: [prompts.ids(*pair) for pair in pairs], size)

    async def plan(
        self, request: GenerationRequest, opening: Opening, *, whitespace: int
    ) -> OutputPlan:
        """See ``plan_output``."""
        size = request.constraint.nbytes if request.constraint is not None else 0
        if isinstance(request.input, ChatInput):
            size += request.input.tools.size
        work = partial(plan_output, request, self._text, opening, whitespace=whitespace)
        return await self._compute(work, size)

    def _encode_chat(self, chat: ChatInput) -> EncodedPrompt:
        conversation = replace(chat.conversation, tools=template_tools(chat.tools))
        template, tokenizer = self._text.template, self._text.tokenizer
        if template is None:
            raise InvalidArgument(
                "the model has no chat template, so it takes text or tokens, not messages; "
                "the setting chat_template can name one",
                reason="TEMPLATE_ERROR",
                field="chat",
            )
        rendered = template.render(conversation)
        return EncodedPrompt(
            tokenizer.encode_guarded(rendered),
            tokenizer.unguard(rendered),
            self._opening(rendered, conversation),
        )

    def _opening(self, rendered: str, conversation: Conversation) -> Opening:
        form = self._text.format.reasoning
        if form is None or conversation.continue_final_message:
            return "closed"
        return form.opening(rendered)

    async def _compute(self, work: Callable[[], Result], size: int) -> Result:
        if size <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)
