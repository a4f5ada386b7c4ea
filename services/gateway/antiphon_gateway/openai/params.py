"""Field paths of the backends' contracts in the words of the OpenAI request."""

from __future__ import annotations

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^chat$", "messages"),
        (r"^chat\.template_kwargs_json", "chat_template_kwargs"),
        (r"^chat\.thinking_budget", "thinking_token_budget"),
        (r"^chat\.tool_choice\.mode", "tool_choice"),
        (r"^chat\.tool_choice\.name", "tool_choice.function.name"),
        (
            r"^chat\.tool_choice\.allowed(\[\d+\])",
            r"tool_choice.allowed_tools.tools\1.function.name",
        ),
        (r"^chat\.tool_choice\.allowed", "tool_choice.allowed_tools.tools"),
        (r"^chat\.tool_choice\.single_call", "parallel_tool_calls"),
        (r"^chat\.(tools\[\d+\])\.parameters_json", r"\1.function.parameters"),
        (r"^chat\.(tools\[\d+\])\.", r"\1.function."),
        (r"^chat\.(messages\[\d+\]\.tool_calls\[\d+\])\.name", r"\1.function.name"),
        (
            r"^chat\.(messages\[\d+\]\.tool_calls\[\d+\])\.arguments_json",
            r"\1.function.arguments",
        ),
        (r"^chat\.(messages\[\d+\])\.reasoning$", r"\1.reasoning_content"),
        (r"^chat\.(messages\[\d+\])\.parts", r"\1.content"),
        (r"^chat\.", ""),
        (r"^sampling\.", ""),
        (r"^stop\.strings", "stop"),
        (r"^stop\.token_ids", "stop_token_ids"),
        (r"^stop\.", ""),
        (r"^output\.", ""),
        (r"^choice_count", "n"),
        (r"^constraint\.json_schema", "response_format.json_schema.schema"),
        (r"^constraint\.strict", "response_format.json_schema.strict"),
        (r"^constraint\.ebnf", "grammar"),
        (r"^constraint\.choice\.values", "choice"),
        (r"^constraint\.(regex|choice)", r"\1"),
        (r"^constraint\b.*", "response_format"),
        (r"^tokens\.ids", "prompt"),
        (r"^inputs", "input"),
        (r"^pairs\[\d+\]\.query$", "query"),
        (r"^pairs(\[\d+\])(\.document)?$", r"documents\1"),
        (r"^ids", "tokens"),
        (r"^config\.output_format\.sample_rate_hz$", "sample_rate"),
        (r"^config\.output_format\b.*", "response_format"),
        (
            r"^config\.diarization\.known_speakers(\[\d+\])\.name$",
            r"known_speaker_names\1",
        ),
        (
            r"^config\.diarization\.known_speakers(\[\d+\])(\.audio)?$",
            r"known_speaker_references\1",
        ),
        (r"^config\.diarization\.known_speakers$", "known_speaker_names"),
        (r"^config\.diarization\b.*", "response_format"),
        (r"^config\.", ""),
    )
)
_RESPONSES_ROUTE = "/v1/responses"
_RESPONSES_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^chat(\.messages)?$", "input"),
        (r"^chat\.reasoning_effort", "reasoning.effort"),
        (r"^chat\.tool_choice\.name", "tool_choice.name"),
        (r"^chat\.tool_choice\.allowed(\[\d+\])", r"tool_choice.tools\1.name"),
        (r"^chat\.tool_choice\.allowed", "tool_choice.tools"),
        (r"^chat\.(tools\[\d+\])\.parameters_json", r"\1.parameters"),
        (r"^chat\.(tools\[\d+\])\.", r"\1."),
        (r"^stop\.max_tokens", "max_output_tokens"),
        (r"^output\.logprobs", "top_logprobs"),
        (r"^constraint\.json_schema", "text.format.schema"),
        (r"^constraint\.strict", "text.format.strict"),
        (r"^constraint$", "text.format"),
    )
)
"""Applied before the others, on that route."""
_CHAT_ROUTE = "/v1/chat/completions"
_SCORE_ROUTE = "/v1/score"
_CHAT_PARAMS = {"output.logprobs": "top_logprobs", "voice": "audio.voice"}
_TEXT_PARAMS = {"/v1/audio/speech": "input"}
_VOICE_PARAMS = {
    "/v1/audio/voices": {
        "audio": "audio_sample",
        "config.display_name": "name",
        "config.consent": "consent",
    }
}
_UPLOAD_ROUTES = ("/v1/audio/transcriptions", "/v1/audio/translations")


def pointer_path(pointer: str) -> str:
    """A JSON pointer as the end of a field path: ``/anyOf/0/pattern`` is ``.anyOf[0].pattern``."""
    steps = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    return "".join(f"[{step}]" if step.isdecimal() else f".{step}" for step in steps)


def request_param(field: str, route: str) -> str:
    """The request's name of a field.

    Args:
        field: path as the gateway or a backend reported it; may be empty.
        route: path template of the route.
    """
    if field == "text":
        return _TEXT_PARAMS.get(route, "prompt")
    if route == _SCORE_ROUTE and field.startswith("pairs"):
        return "text_1" if field.endswith(".query") else "text_2"
    if field in _VOICE_PARAMS.get(route, ()):
        return _VOICE_PARAMS[route][field]
    if route == _CHAT_ROUTE and field in _CHAT_PARAMS:
        return _CHAT_PARAMS[field]
    rules = (*_RESPONSES_RULES, *_RULES) if route == _RESPONSES_ROUTE else _RULES
    for pattern, replacement in rules:
        field = pattern.sub(replacement, field)
    return "file" if field == "audio" and route in _UPLOAD_ROUTES else field
