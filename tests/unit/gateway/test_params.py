"""Fields that a backend blames appear under their names in the OpenAI request."""

from __future__ import annotations

import pytest
from antiphon_gateway.openai.params import request_param

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ("", ""),
        ("chat", "messages"),
        ("chat.messages[1].parts[0].image", "messages[1].content[0].image"),
        ("chat.messages[1].reasoning", "messages[1].reasoning_content"),
        ("chat.messages[2].tool_call_id", "messages[2].tool_call_id"),
        (
            "chat.messages[2].tool_calls[0].arguments_json",
            "messages[2].tool_calls[0].function.arguments",
        ),
        ("chat.messages[2].tool_calls[0].name", "messages[2].tool_calls[0].function.name"),
        ("chat.tools", "tools"),
        ("chat.tools[3].name", "tools[3].function.name"),
        ("chat.tools[3].parameters_json", "tools[3].function.parameters"),
        (
            "chat.tools[3].parameters_json.properties.a",
            "tools[3].function.parameters.properties.a",
        ),
        ("chat.tool_choice.mode", "tool_choice"),
        ("chat.tool_choice.name", "tool_choice.function.name"),
        (
            "chat.tool_choice.allowed[1]",
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ("chat.tool_choice.single_call", "parallel_tool_calls"),
        ("chat.template_kwargs_json.thinking", "chat_template_kwargs.thinking"),
        ("chat.reasoning_effort", "reasoning_effort"),
        ("chat.thinking_budget", "thinking_token_budget"),
        ("sampling.logit_bias[5]", "logit_bias[5]"),
        ("stop.strings[1]", "stop[1]"),
        ("stop.max_tokens", "max_tokens"),
        ("choice_count", "n"),
        ("output.logprobs", "top_logprobs"),
        ("output.prompt_logprobs", "prompt_logprobs"),
        ("constraint", "response_format"),
        ("constraint.json_object", "response_format"),
        ("constraint.json_schema", "response_format.json_schema.schema"),
        (
            "constraint.json_schema.properties.a.pattern",
            "response_format.json_schema.schema.properties.a.pattern",
        ),
        ("constraint.regex", "regex"),
        ("constraint.ebnf", "grammar"),
        ("constraint.choice.values[2]", "choice[2]"),
    ],
)
def test_names_of_a_chat_request(field: str, param: str) -> None:
    assert request_param(field, CHAT) == param


@pytest.mark.parametrize(
    ("field", "route", "param"),
    [
        ("text", TEXT, "prompt"),
        ("tokens.ids[3]", TEXT, "prompt[3]"),
        ("output.logprobs", TEXT, "logprobs"),
        ("text", "/v1/audio/speech", "input"),
        ("audio", "/v1/audio/transcriptions", "file"),
        ("config.output_format.sample_rate_hz", "/v1/audio/speech", "sample_rate"),
        ("config.language", "/v1/audio/transcriptions", "language"),
        ("config.keywords[3]", "/v1/audio/transcriptions", "keywords[3]"),
        (
            "config.diarization.known_speakers[1].audio",
            "/v1/audio/transcriptions",
            "known_speaker_references[1]",
        ),
        (
            "config.diarization.known_speakers[1].name",
            "/v1/audio/transcriptions",
            "known_speaker_names[1]",
        ),
        ("config.diarization.known_speakers", "/v1/audio/transcriptions", "known_speaker_names"),
        ("config.diarization", "/v1/audio/transcriptions", "response_format"),
        ("response_format.json_schema.schema", CHAT, "response_format.json_schema.schema"),
        ("input", "/v1/embeddings", "input"),
        ("config.output_format.encoding", "/v1/audio/speech", "response_format"),
        ("ids[0]", "/detokenize", "tokens[0]"),
        ("pairs[3].document", "/v1/rerank", "documents[3]"),
        ("pairs[3]", "/v1/rerank", "documents[3]"),
        ("pairs[3].query", "/v1/rerank", "query"),
        ("pairs[3].document", "/v1/score", "text_2"),
        ("pairs[3].query", "/v1/score", "text_1"),
    ],
)
def test_names_of_other_requests(field: str, route: str, param: str) -> None:
    assert request_param(field, route) == param
