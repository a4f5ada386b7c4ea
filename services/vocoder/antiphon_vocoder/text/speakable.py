"""Removes what cannot be spoken: markup, emoji, control characters."""

from __future__ import annotations

import re
import unicodedata

_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_LINE_MARKER = re.compile(r"(?m)^[ \t]*(?:[-*+•>]|#{1,6})[ \t]+")
_EMPHASIS = re.compile(r"[*`~|]+|(?<!\w)_+|_+(?!\w)|#(?=#)")
_SPACES = re.compile(r"\s+")
_PICTOGRAPHS_FROM = 0x2190
"""Symbols below, such as the degree sign, have names that espeak-ng speaks."""


def speakable(text: str) -> str:
    """The text without Markdown, tags and emoji, white space collapsed; empty when no letter or
    digit is left."""
    text = _LINK.sub(r"\1", text)
    text = _TAG.sub(" ", text)
    text = _LINE_MARKER.sub("", text)
    text = _EMPHASIS.sub("", text)
    text = "".join(character for character in text if not _is_silent(character))
    text = _SPACES.sub(" ", text).strip()
    return text if any(character.isalnum() for character in text) else ""


def _is_silent(character: str) -> bool:
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp"):
        return not character.isspace()
    if category in ("Cf", "Cn", "Co", "Cs", "Sk"):
        return True
    if category == "So":
        return ord(character) >= _PICTOGRAPHS_FROM
    # Variation selectors and the keycap's enclosing mark follow emoji.
    return 0xFE00 <= ord(character) <= 0xFE0F or ord(character) == 0x20E3
