"""Chat templates: where they come from, what they are given, what they refuse."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from antiphon_core.errors import InvalidArgument
from jinja2 import meta, nodes

from antiphon_llm.front.conversation import (
    Conversation,
    MessageForm,
    guard_values,
    template_messages,
)
from antiphon_llm.front.errors import ModelSourceError
from antiphon_llm.front.parsing.base import CallFormat
from antiphon_llm.front.parsing.json_calls import JsonInTags
from antiphon_llm.front.sandbox import (
    TemplateEnvironment,
    TemplateRefusal,
    render,
)
from antiphon_llm.front.tokenizer import Tokenizer, read_json
from antiphon_llm.front.tool_text import described, in_words

RENDER_SECONDS = 2.0
SIZE_LIMIT = 4 * 1024 * 1024
"""Characters of one rendered conversation."""

PACKAGED_TEMPLATES = ("gemma", "chatml")
"""For base models that bring none; used only where the configuration names one."""

_OWN_VARIABLES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "reasoning_effort",
    }
)
"""Set by the service itself, never by ``template_kwargs``."""


@dataclass(frozen=True)
class TemplateSource:
    """The text of a chat template and where it came from."""

    text: str
    origin: str
    tools_text: str = ""
    """Another template for conversations with tools, where the model has one."""


def find_template(
    *, override: str, directory: Path | None, metadata: Mapping[str, Any] | None
) -> TemplateSource | None:
    """The model's chat template: the override, then the checkpoint's own places.

    Args:
        override: the file or packaged template that the configuration names; empty for none.
        directory: a checkpoint directory.
        metadata: of a GGUF file.

    Raises:
        ModelSourceError: the override cannot be read.
    """
    if override in PACKAGED_TEMPLATES:
        file = resources.files("antiphon_llm") / "chat_templates" / f"{override}.jinja"
        return TemplateSource(file.read_text(encoding="utf-8"), f"the packaged {override}")
    if override:
        try:
            text = Path(override).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelSourceError(
                f"chat_template {override} cannot be read: {error}; it is a file, or one of "
                f"{', '.join(PACKAGED_TEMPLATES)}"
            ) from None
        return TemplateSource(text, "the configured file")
    if directory is not None:
        path = directory / "chat_template.jinja"
        if path.is_file():
            return TemplateSource(path.read_text(encoding="utf-8"), path.name)
        found = read_json(directory / "tokenizer_config.json").get("chat_template")
        named = found if isinstance(found, list) else [{"name": "default", "template": found}]
        return _named_template(
            {item.get("name"): item.get("template") for item in named}, "tokenizer_config.json"
        )
    facts = metadata or {}
    return _named_template(
        {
            "default": facts.get("tokenizer.chat_template"),
            "tool_use": facts.get("tokenizer.chat_template.tool_use"),
        },
        "GGUF metadata",
    )


def _named_template(named: Mapping[Any, Any], origin: str) -> TemplateSource | None:
    """The template named default, with the one for tools beside it."""
    text, tools_text = named.get("default"), named.get("tool_use")
    if not isinstance(text, str) or not text:
        return None
    return TemplateSource(text, origin, tools_text if isinstance(tools_text, str) else "")


class ChatTemplate:
    """A compiled template. Thread-safe.

    Args:
        source: its text and origin.
        tokenizer: names the special tokens and guards message texts.
        calls: how calls are written where the template does not know.

    Raises:
        ModelSourceError: it does not compile.
    """

    def __init__(
        self, source: TemplateSource, tokenizer: Tokenizer, calls: CallFormat | None = None
    ) -> None:
        environment = TemplateEnvironment(SIZE_LIMIT)
        try:
            tree = environment.parse(source.text)
            self._template = environment.from_string(source.text)
        except jinja2.TemplateError as error:
            raise ModelSourceError(
                f"the chat template of {source.origin} does not compile: {error}"
            ) from None
        self.origin = source.origin
        both = source.text + source.tools_text
        self.digest = hashlib.sha256(both.encode()).hexdigest()
        for_tools = TemplateSource(source.tools_text, source.origin)
        self._for_tools = ChatTemplate(for_tools, tokenizer, calls) if source.tools_text else None
        self._tokenizer = tokenizer
        self._calls = calls or JsonInTags()
        self._reads = meta.find_undeclared_variables(tree) - set(environment.globals)
        self._reads_calls = any(
            node.attr == "tool_calls" for node in tree.find_all(nodes.Getattr)
        ) or any(node.value == "tool_calls" for node in tree.find_all(nodes.Const))
        special = tokenizer.special
        self._base = {
            "bos_token": special.bos or "",
            "eos_token": special.eos or "",
            "unk_token": special.unk or "",
            "pad_token": special.pad or "",
        }
        self._form = self._probe_form(tree, source.text)
        self.reads_tools = self._for_tools is not None or self._probe_tools(tree)
        """Whether it has a place for tools; else they are described in the system message."""

    @property
    def variables(self) -> Sequence[str]:
        """The further variables that a request may set."""
        return sorted(self._reads - _OWN_VARIABLES)

    def render(self, conversation: Conversation) -> str:
        """The prompt text, with guards where message texts look like control tokens.

        Tools, calls and their results stand as text where the template does not read them.

        Raises:
            InvalidArgument: TEMPLATE_ERROR where the template fails or refuses,
                UNSUPPORTED_OPTION for a variable that it never reads.
        """
        if self._for_tools is not None and (conversation.tools or _has_calls(conversation)):
            return self._for_tools.render(conversation)
        if not self._reads_calls and _has_calls(conversation):
            conversation = in_words(conversation, self._calls)
        if conversation.tools and not self.reads_tools:
            conversation = described(conversation, self._calls)
        variables = self._variables(conversation)
        try:
            text = self._render(variables)
        except TemplateRefusal as error:
            raise InvalidArgument(
                f"the chat template refuses these messages: {error}",
                reason="TEMPLATE_ERROR",
                field="chat.messages",
            ) from None
        except Exception as error:
            # Foreign code: whatever it raises on this input is its refusal of the input.
            raise InvalidArgument(
                f"the chat template failed on these messages: {error}",
                reason="TEMPLATE_ERROR",
                field="chat.messages",
            ) from None
        if conversation.continue_final_message:
            return _cut_after_last_message(text, variables["messages"])
        return text

    def _variables(self, conversation: Conversation) -> dict[str, Any]:
        refused = sorted(
            name
            for name in conversation.template_kwargs
            if name in _OWN_VARIABLES or name not in self._reads
        )
        if refused:
            raise InvalidArgument(
                f"the chat template never reads {', '.join(refused)}",
                reason="UNSUPPORTED_OPTION",
                field=f"chat.template_kwargs_json.{refused[0]}",
                allowed=self.variables,
            )
        guard = self._tokenizer.guard
        messages = template_messages(conversation, guard=guard, form=self._form)
        tools = guard_values(list(conversation.tools), guard)
        return {
            **self._base,
            **guard_values(dict(conversation.template_kwargs), guard),
            **({"tools": tools} if tools else {}),
            **self._reasoning(conversation.reasoning_effort),
            "messages": messages,
            "add_generation_prompt": not conversation.continue_final_message,
        }

    def _reasoning(self, effort: str) -> dict[str, Any]:
        if not effort:
            return {}
        if "reasoning_effort" in self._reads:
            return {"reasoning_effort": effort}
        if "enable_thinking" in self._reads:
            return {"enable_thinking": effort != "none"}
        raise InvalidArgument(
            "the chat template has no reasoning effort",
            reason="UNSUPPORTED_OPTION",
            field="chat.reasoning_effort",
        )

    def _render(self, variables: Mapping[str, Any]) -> str:
        return render(self._template, variables, seconds=RENDER_SECONDS, size_limit=SIZE_LIMIT)

    def _probe_form(self, tree: nodes.Template, text: str) -> MessageForm:
        """What the template takes: a form is chosen only where no other shows up."""
        texts = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
        probe = "antiphon probe"

        def content(value: object) -> list[dict[str, Any]]:
            return [{"role": "user", "content": value}]

        def call(arguments: object) -> list[dict[str, Any]]:
            function = {"name": "probe", "arguments": arguments}
            calls = [{"id": "a" * 9, "type": "function", "function": function}]
            return [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": "", "tool_calls": calls},
            ]

        def only(other: list[dict[str, Any]], usual: list[dict[str, Any]]) -> bool:
            return not self._shows(probe, usual) and self._shows(probe, other)

        return MessageForm(
            part_lists=only(content([{"type": "text", "text": probe}]), content(probe)),
            developer_role="developer" in texts,
            argument_text=only(call(f'{{"x": "{probe}"}}'), call({"x": probe})),
            short_call_ids="length != 9" in text,
        )

    def _probe_tools(self, tree: nodes.Template) -> bool:
        """Whether tools show up; a template may read them and yet only ask whether there are."""
        probe = "antiphon_probe"
        function = {"name": probe, "description": "", "parameters": {"type": "object"}}
        asked = any(node.name == "tools" for node in tree.find_all(nodes.Name))
        message = [{"role": "user", "content": "x"}]
        tools = [{"type": "function", "function": function}]
        return asked and self._shows(probe, message, tools=tools)

    def _shows(self, probe: str, messages: list[dict[str, Any]], **more: Any) -> bool:
        variables = {**self._base, **more, "messages": messages, "add_generation_prompt": True}
        try:
            return probe in self._render(variables)
        except Exception:
            return False  # Foreign code that does not take this form.


def _has_calls(conversation: Conversation) -> bool:
    return any(message.role == "tool" or message.tool_calls for message in conversation.messages)


def _cut_after_last_message(text: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """The text up to the end of the last message, so that the model goes on writing it."""
    content = messages[-1]["content"]
    last = content if isinstance(content, str) else "".join(part["text"] for part in content)
    for candidate in (last, last.strip()):
        place = text.rfind(candidate) if candidate else -1
        if place >= 0:
            return text[: place + len(candidate)]
    raise InvalidArgument(
        "the last message does not appear in the rendered template, so it cannot be continued",
        reason="TEMPLATE_ERROR",
        field="chat.continue_final_message",
    )
