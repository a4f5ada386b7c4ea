"""What is known of a stored voice: its manifest.json."""

from __future__ import annotations

import re
import secrets
from typing import Literal

import msgspec

VOICE_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
"""Every id of a voice, of any kind."""
_ID_BYTES = 12


class Consent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A speaker's consent."""

    statement: str
    speaker: str
    granted_at: float
    """Seconds since the epoch."""
    evidence_sha256: str = ""
    """Hexadecimal digest of the recorded evidence; empty where there is none."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of one voice. Names of files are not among them: they are the same in every voice."""

    version: Literal[1] = 1
    id: str
    display_name: str
    owner: str
    """Tenant; empty where callers have no identity."""
    kind: Literal["uploaded", "cloned"]
    models: list[str]
    """Models whose conditioning the voice has."""
    created_at: float
    """Seconds since the epoch."""
    sample_sha256: str
    """Hexadecimal digest of sample.flac."""
    transcript: str = ""
    language: str = ""
    """BCP 47 tag; empty where it is not known."""
    consent: Consent | None = None


def new_voice_id() -> str:
    """An id that nobody guesses."""
    return f"voice_{secrets.token_hex(_ID_BYTES)}"
