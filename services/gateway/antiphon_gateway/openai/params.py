"""Field paths of the backends' contracts in the words of the OpenAI request."""

from __future__ import annotations

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^chat$", "messages"),
        (r"^chat\.template_kwargs_json", "chat_template_kwargs"),
        (r"^chat\.", ""),
        (r"^(messages\[\d+\])\.parts", r"\1.content"),
        (r"^sampling\.", ""),
        (r"^stop\.strings", "stop"),
        (r"^stop\.token_ids", "stop_token_ids"),
        (r"^stop\.", ""),
        (r"^output\.", ""),
        (r"^choice_count", "n"),
        (r"^constraint\b.*", "response_format"),
        (r"^tokens\.ids", "prompt"),
        (r"^inputs", "input"),
        (r"^ids", "tokens"),
        (r"^config\.output_format\.sample_rate_hz$", "sample_rate"),
        (r"^config\.output_format\b.*", "response_format"),
        (r"^config\.", ""),
    )
)
_TEXT_PARAMS = {"/v1/audio/speech": "input"}
_UPLOAD_ROUTES = ("/v1/audio/transcriptions", "/v1/audio/translations")


def request_param(field: str, route: str) -> str:
    """The request's name of a field.

    Args:
        field: path as the gateway or a backend reported it; may be empty.
        route: path template of the route.
    """
    if field == "text":
        return _TEXT_PARAMS.get(route, "prompt")
    for pattern, replacement in _RULES:
        field = pattern.sub(replacement, field)
    return "file" if field == "audio" and route in _UPLOAD_ROUTES else field
