"""What a session's inbox holds besides errors and the model process's audio."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_vocoder.text.prepare import PreparedSegment


@dataclass(frozen=True)
class TextPiece:
    """The next piece of the text."""

    text: str


@dataclass(frozen=True)
class Flush:
    """Speak what is buffered."""


@dataclass(frozen=True)
class Clear:
    """Drop what has not been spoken."""


@dataclass(frozen=True)
class EndOfInput:
    """No more input comes."""


@dataclass(frozen=True)
class VoiceDeleted:
    """The voice of the stream is gone."""


@dataclass(frozen=True)
class Prepared:
    """A segment's phonemes are there."""

    prepared: PreparedSegment
    epoch: int
    """Clears before it was asked for: a later clear makes it stale."""


@dataclass
class SpokenSegment:
    """A segment on its way to the listener."""

    clause: int
    end: int
    """Offset in the joined text."""
    word_offsets: list[int]
    """Offset in the joined text for each spoken word."""
    done: bool
    """All of its audio is out."""
