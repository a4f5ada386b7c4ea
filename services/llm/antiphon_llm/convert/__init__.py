"""Between the wire's messages and the domain's plain data. Pure functions, no decisions."""

from .chat import chat_input
from .events import error_event, response
from .models import model
from .requests import (
    embed_inputs,
    generation_request,
    scope_of_call,
    scope_of_start,
    tokenize_input,
)

__all__ = [
    "chat_input",
    "embed_inputs",
    "error_event",
    "generation_request",
    "model",
    "response",
    "scope_of_call",
    "scope_of_start",
    "tokenize_input",
]
