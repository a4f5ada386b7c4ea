"""What a caller asks for about speakers, as it travels to the worker."""

from __future__ import annotations

import msgspec


class KnownSpeaker(msgspec.Struct, frozen=True):
    """A speaker with a sample of the voice."""

    name: str
    audio: bytes
    """A file in any container."""


class SpeakerOptions(msgspec.Struct, frozen=True):
    """How speakers are told apart."""

    known: list[KnownSpeaker]
    most: int
    """Speakers that are labelled, known ones included."""
