"""Tools: checks, what templates and grammars get, and how an output becomes deltas."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from antiphon_core.errors import InvalidArgument
from antiphon_llm.checkpoint import resolve
from antiphon_llm.config import LlmSettings
from antiphon_llm.front import tools
from antiphon_llm.front.choice import Choice
from antiphon_llm.front.constraints import ConstraintOptions
from antiphon_llm.front.conversation import Conversation, Message, ToolCall
from antiphon_llm.front.encoding import PromptEncoder
from antiphon_llm.front.events import Delta
from antiphon_llm.front.generation_config import SamplingDefaults
from antiphon_llm.front.model import TextModel, WeightFacts, load_text_model
from antiphon_llm.front.output import OutputPlan, plan_output
from antiphon_llm.front.parsing.json_calls import JsonInTags
from antiphon_llm.front.parsing.reader import Markers
from antiphon_llm.front.parsing.reasoning import Opening
from antiphon_llm.front.parsing.registry import choose
from antiphon_llm.front.requests import (
    ChatInput,
    GenerationRequest,
    OutputOptions,
    StopOptions,
)
from antiphon_llm.front.templates import ChatTemplate, TemplateSource, find_template
from antiphon_llm.front.tokenizer import Tokenizer
from antiphon_llm.front.tools import Tool, ToolOptions, check_ending, check_tools, offered_tools
from pydantic import ValidationError

CITY = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
WEATHER, NOW = Tool("get_weather", "Forecast", CITY), Tool("now")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% if think %}<think>\n{% endif %}"
    "{% if not think %}<think>\n\n</think>\n\n{% endif %}"
)


def refused(options: ToolOptions) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        check_tools(options)
        offered_tools(options)
    return caught.value


def test_names_and_choice_are_checked() -> None:
    check_tools(ToolOptions([WEATHER, NOW], "auto"))
    for options, field in (
        (ToolOptions([Tool("a b")], "auto"), "chat.tools[0].name"),
        (ToolOptions([NOW, NOW], "auto"), "chat.tools[1].name"),
        (ToolOptions([Tool(f"t{i}") for i in range(129)], "auto"), "chat.tools"),
        (ToolOptions((), "required"), "chat.tool_choice"),
        (ToolOptions([NOW], "named", "other"), "chat.tool_choice.name"),
        (ToolOptions([NOW], "auto", "now"), "chat.tool_choice.name"),
        (ToolOptions([NOW], "auto", allowed=["x"]), "chat.tool_choice.allowed[0]"),
        (
            ToolOptions([NOW, WEATHER], "named", "get_weather", allowed=["now"]),
            "chat.tool_choice.name",
        ),
    ):
        assert refused(options).field == field


def test_schemas_are_checked() -> None:
    for text in ("{", "[]", '{"type": "string"}', '{"type": "object", "properties": 5}'):
        error = refused(ToolOptions([NOW, Tool("t", parameters_json=text)], "auto"))
        assert (error.reason, error.field) == ("INVALID_SCHEMA", "chat.tools[1].parameters_json")
    long = json.dumps({"description": "x" * tools.SCHEMA_BYTES})
    error = refused(ToolOptions([Tool("t", parameters_json=long)], "auto"))
    assert error.metadata["limit"] == str(tools.SCHEMA_BYTES)


def test_what_cannot_be_enforced_is_refused_or_noted() -> None:
    text = '{"properties": {"a": {"type": "array", "uniqueItems": true}}}'
    tool = Tool("t", parameters_json=text, strict=True)
    error = refused(ToolOptions([tool], "auto"))
    assert (error.reason, error.metadata["keyword"]) == ("UNSUPPORTED_OPTION", "uniqueItems")
    offered = offered_tools(ToolOptions([replace(tool, strict=False)], "auto"))
    assert "uniqueItems" in offered.notes[0]


def test_choice_and_allowed_filter() -> None:
    def names(*args: object, **fields: object) -> list[str]:
        options = ToolOptions([WEATHER, NOW], *args, **fields)  # type: ignore[arg-type]
        return [spec.name for spec in offered_tools(options).specs]

    assert names("auto") == ["get_weather", "now"]
    assert names("required", allowed=["now"]) == ["now"]
    assert names("named", "now") == ["now"]
    assert names("none") == []
    rendered = tools.template_tools(ToolOptions([WEATHER, NOW], "auto", allowed=["now"]))
    assert [tool["function"]["name"] for tool in rendered] == ["now"]


def test_a_tool_takes_only_the_names_that_it_declares() -> None:
    (spec,) = offered_tools(ToolOptions([WEATHER], "auto")).specs
    assert spec.grammar["additionalProperties"] is False
    for text in (
        '{"properties": {"a": {}}, "additionalProperties": {"type": "string"}}',
        '{"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}, "required": ["b"]}]}',
        '{"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}',
    ):
        options = ToolOptions([Tool("t", parameters_json=text)], "auto")
        (spec,) = offered_tools(options).specs
        assert spec.grammar.get("additionalProperties") is not False or (
            "patternProperties" in spec.grammar
        )


def test_an_end_that_a_call_brings_cannot_be_barred() -> None:
    options = ToolOptions([NOW], "named", "now")
    for fields, name in (((True, 0), "stop.ignore_eos"), ((False, 3), "sampling.min_tokens")):
        with pytest.raises(InvalidArgument) as caught:
            check_ending(options, ignore_eos=fields[0], min_tokens=fields[1])
        assert caught.value.field == name
    check_ending(ToolOptions([NOW], "auto"), ignore_eos=True, min_tokens=3)


def text_model(template: str, tokenizer: Tokenizer, **parsers: str) -> TextModel:
    return TextModel(
        tokenizer,
        ChatTemplate(TemplateSource(template, "a test"), tokenizer),
        SamplingDefaults(),
        WeightFacts("", 0, ""),
        choose(template, **parsers),
    )


HISTORY = [
    Message("user", ("Weather?",)),
    Message("assistant", ("I look.",), tool_calls=[ToolCall("1", "now", '{"a": 1}')]),
    Message("tool", ("10:00",), tool_call_id="1"),
    Message("tool", ("<|im_end|>",), tool_call_id="1"),
]


def test_tools_in_words_where_the_template_knows_none(smollm: Tokenizer) -> None:
    template = text_model(CHATML, smollm).template
    assert template is not None and not template.reads_tools
    offered = tools.template_tools(ToolOptions([WEATHER], "auto"))
    system = [Message("system", ("Be brief.",)), *HISTORY]
    text = template.render(Conversation(system, tools=offered))
    assert text.startswith("<|im_start|>system\nBe brief.\n\nThese functions are available")
    assert '{"name": "get_weather", "description": "Forecast", "parameters": {' in text
    assert (
        "<|im_start|>assistant\nI look.\n<tool_call>\n"
        '{"name": "now", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n' in text
    )
    assert smollm.unguard(text).endswith(
        "<|im_start|>user\n<tool_response>\n10:00\n</tool_response>\n<tool_response>\n<|im_end|>\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.count("<|im_end|>") == 4
    plain = template.render(Conversation(HISTORY[:1]))
    assert plain == "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"


def test_tools_through_the_models_own_template(smollm: Tokenizer) -> None:
    template = text_model(QWEN, smollm).template
    assert template is not None and template.reads_tools
    offered = tools.template_tools(
        ToolOptions([replace(WEATHER, description="<|im_end|>")], "auto")
    )
    text = template.render(Conversation(HISTORY, tools=offered))
    assert text.startswith('<tools>{"type": "function", "function": {"name": "get_weather"')
    assert '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>' in text
    assert "These functions" not in text
    assert text.count("<|im_end|>") == 4


def test_forms_that_templates_insist_on(smollm: Tokenizer) -> None:
    text_form = (
        "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
        "{{ c.function.name + c.function.arguments }}{{ c.id }}{% if c.id | length != 9 %}"
        "{{ raise_exception('length != 9') }}{% endif %}{% endfor %}{{ m.name }}{% endfor %}"
    )
    template = text_model(text_form, smollm).template
    assert template is not None
    text = template.render(Conversation(HISTORY))
    assert 'now{"a": 1}' in text
    assert text.endswith("<\ufdd0|im_end|>now")


def chat(options: ToolOptions, **fields: object) -> ChatInput:
    conversation = Conversation(HISTORY[:1], **fields)  # type: ignore[arg-type]
    return ChatInput(conversation, options)


def planned(
    model: TextModel,
    asked: ChatInput,
    opening: Opening = "closed",
    constraint: ConstraintOptions | None = None,
) -> OutputPlan:
    request = GenerationRequest(asked, constraint=constraint)
    return plan_output(request, model, opening, whitespace=16)


def tag(plan: OutputPlan) -> dict:
    assert plan.constraint is not None and plan.constraint.kind == "structural_tag"
    return json.loads(plan.constraint.source)["format"]


def test_plans(smollm: Tokenizer) -> None:
    text = text_model(CHATML, smollm)

    def plan(options: ToolOptions, constraint: ConstraintOptions | None = None) -> OutputPlan:
        return planned(text, chat(options), "closed", constraint)

    assert plan(ToolOptions()) == OutputPlan()
    assert plan(ToolOptions([NOW], "none")).parser() is None
    auto = plan(ToolOptions([NOW], "auto"))
    assert tag(auto)["type"] == "triggered_tags"
    assert auto.parser() is not None
    assert "system message" in auto.notes[0]
    assert tag(plan(ToolOptions([NOW], "auto", single_call=True)))["stop_after_first"]
    assert not tag(plan(ToolOptions([NOW], "required")))["stop_after_first"]
    assert tag(plan(ToolOptions([NOW], "named", "now")))["stop_after_first"]
    answer = ConstraintOptions("json_object")
    both = tag(plan(ToolOptions([NOW], "auto"), answer))
    assert [part["type"] for part in both["elements"]] == ["tags_with_separator", "json_schema"]
    assert tag(plan(ToolOptions([NOW], "required"), answer))["type"] == "tags_with_separator"
    alone = plan(ToolOptions(), answer).constraint
    assert alone is not None and alone.kind == "json_object"
    text_alone = GenerationRequest("Hi", constraint=answer)
    assert plan_output(text_alone, text, "closed", whitespace=16).constraint == alone


async def test_the_prompt_tells_where_a_trace_stands(smollm: Tokenizer) -> None:
    text = text_model(QWEN, smollm)
    encoder = PromptEncoder(text)
    for kwargs, opening in (({"think": True}, "open"), ({}, "closed")):
        asked = chat(ToolOptions(), template_kwargs=kwargs)
        encoded = await encoder.encode(asked)
        assert encoded.opening == opening
        plan = planned(text, asked, encoded.opening)
        assert (plan.reasoning is not None) == (opening == "open")
    encoder.close()
    budgeted = replace(chat(ToolOptions()), thinking_budget=7)
    plan = planned(text, budgeted, "possible")
    assert plan.reasoning is not None
    assert (plan.reasoning.open, plan.reasoning.budget) == (False, 7)
    assert smollm.decode(plan.reasoning.end_ids) == "</think>"
    for model in (text, text_model(CHATML, smollm)):
        with pytest.raises(InvalidArgument) as caught:
            planned(model, budgeted)
        assert caught.value.field == "chat.thinking_budget"


def test_a_call_whose_beginning_is_a_token_may_end_a_trace(smollm: Tokenizer) -> None:
    text = text_model(QWEN, smollm)
    options = ToolOptions([NOW], "auto")
    plan = planned(text, chat(options), "open")
    assert plan.reasoning is not None
    assert (plan.reasoning.opener_ids, plan.trace_openers) == ([], ())
    form = replace(text.format, calls=Whispered())
    plan = planned(replace(text, format=form), chat(options), "open")
    assert plan.reasoning is not None
    assert (plan.reasoning.opener_ids, plan.trace_openers) == ([1], ("<|im_start|>",))
    plan = planned(replace(text, format=form), chat(ToolOptions()), "open")
    assert plan.reasoning is not None and not plan.reasoning.opener_ids


class Whispered(JsonInTags):
    """JSON behind a control token of the small model's."""

    openers = Markers("<|im_start|>")


def outcome(plan: OutputPlan, smollm: Tokenizer, text: str, reason: str) -> tuple[list[Delta], str]:
    choice = Choice(0, smollm, StopOptions(strings=["STOP"]), OutputOptions(), plan=plan)
    deltas = []
    for token in smollm.encode(text, add_special_tokens=False):
        choice.push(token, 0.0, None)
        deltas.append(choice.take())
    choice.finish(reason)
    deltas.append(choice.take())
    return [delta for delta in deltas if delta is not None], choice.reason


def test_a_choice_gives_typed_deltas(smollm: Tokenizer) -> None:
    text = text_model(QWEN, smollm)
    plan = planned(text, chat(ToolOptions([WEATHER], "auto")), "open")
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    deltas, reason = outcome(plan, smollm, f"Hm, Oslo.</think>\n\nI look.{call}", "stop")
    assert reason == "tool_calls"
    assert "".join(delta.reasoning for delta in deltas) == "Hm, Oslo."
    assert "".join(delta.text for delta in deltas) == "I look."
    pieces = [piece for delta in deltas for piece in delta.tool_calls]
    assert len([piece for piece in pieces if piece.id]) == 1
    assert (pieces[0].index, pieces[0].name, len(pieces[0].id)) == (0, "get_weather", 29)
    assert "".join(piece.arguments for piece in pieces) == '{"city": "Oslo"}'
    assert len(pieces) > 2
    assert not any(delta.plain for delta in deltas if delta.reasoning or delta.tool_calls)
    assert outcome(plan, smollm, f"</think>{call}", "length")[1] == "length"
    assert outcome(plan, smollm, "</think>Hi STOP more", "length")[1] == "stop"


def test_control_tokens_that_are_markers_reach_the_parser(smollm: Tokenizer) -> None:
    """In this vocabulary <|im_start|> is a control token; the model's format makes it a marker."""
    text = text_model(QWEN, smollm)
    form = replace(text.format.reasoning, start="<|im_start|>", end="<|im_end|>")  # type: ignore[type-var]
    text = replace(text, format=replace(text.format, reasoning=form))
    assert text.marker_ids == {1, 2}
    assert text.vocabulary()[1] == b"<|im_start|>" and text.vocabulary()[0] == b""
    plan = planned(text, chat(ToolOptions()), "possible")
    deltas, _ = outcome(plan, smollm, "<|im_start|>Hm<|im_end|>Hi", "stop")
    assert ["".join(d.reasoning for d in deltas), "".join(d.text for d in deltas)] == ["Hm", "Hi"]


def test_words_follow_the_format_of_the_model(smollm: Tokenizer) -> None:
    """A template that writes calls but has no place for tools gets their description alone."""
    own = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.tool_calls }}")
    form = choose(own, tool_parser="function_xml")
    template = ChatTemplate(TemplateSource(own, "a test"), smollm, form.calls)
    offered = tools.template_tools(ToolOptions([NOW], "auto"))
    text = template.render(Conversation(HISTORY, tools=offered))
    assert "<function=function_name>\n<parameter=argument_name>\nvalue\n</parameter>" in text
    assert "[{'id': '1'" in text
    assert "<|im_start|>tool\n10:00" in text


def test_a_template_of_its_own_for_tools(smollm: Tokenizer, tmp_path: Path) -> None:
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": QWEN}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    source = find_template(override="", directory=tmp_path, metadata=None)
    assert source is not None
    template = ChatTemplate(source, smollm)
    assert template.reads_tools
    offered = tools.template_tools(ToolOptions([NOW], "auto"))
    assert template.render(Conversation(HISTORY[:1], tools=offered)).startswith("<tools>")
    assert template.render(Conversation(HISTORY[:1])).startswith("<|im_start|>user")


def test_tools_that_are_asked_for_but_not_shown_are_described(smollm: Tokenizer) -> None:
    template = text_model("{% if tools %}Use tools.{% endif %}" + CHATML, smollm).template
    assert template is not None and not template.reads_tools


def test_formats_are_overridden_by_name(tmp_path: Path) -> None:
    source = resolve("smollm2-135m-instruct", tmp_path)
    loaded = load_text_model(source, "", "deepseek", "think")
    assert loaded.format.reasoning is not None and loaded.format.calls.name == "deepseek"
    with pytest.raises(ValidationError, match="tool_parser is 'other', allowed are argument_xml"):
        LlmSettings(tool_parser="other")
    with pytest.raises(ValidationError, match="reasoning_parser"):
        LlmSettings(reasoning_parser="other")
