"""Errors of the front that are no answer to a request: they end or refuse the boot."""

from __future__ import annotations


class ModelSourceError(Exception):
    """The configured model cannot be found or used; the message says how to put it right."""


class TokenizerError(ModelSourceError):
    """The model's tokenizer is absent, damaged or of an unsupported kind."""
