"""What of a spoken reply has been sent, and what of its text the listener can have heard."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

MAX_CLAIM_BEYOND_SENT_MS = 1000
"""A client may claim to have played this much more than was sent; it is clamped."""


@dataclass(slots=True)
class Playback:
    """Accounting of one spoken item, in samples of its output format."""

    sample_rate: int
    sent_samples: int = 0
    queued_samples: int = 0
    """Samples that wait to be sent."""
    ends_at: float = 0.0
    """When the sent audio has been played at the earliest, in monotonic seconds."""
    interrupted_samples: int | None = None
    """Samples that can have been heard when the listener cut the reply off."""
    truncated_ms: int | None = None
    mark_characters: list[int] = field(default_factory=list)
    mark_samples: list[int] = field(default_factory=list)

    @property
    def sent_ms(self) -> int:
        """Length of the audio that has left for the client."""
        return self.sent_samples * 1000 // self.sample_rate

    def sent(self, sample_count: int, now: float, free_at: float) -> float:
        """Counts audio that left for the client.

        Args:
            sample_count: of the chunk.
            now: monotonic seconds.
            free_at: when the client has played everything that was sent before the chunk.

        Returns:
            When the chunk has been played at the earliest.
        """
        self.sent_samples += sample_count
        self.queued_samples = max(0, self.queued_samples - sample_count)
        self.ends_at = max(now, free_at) + sample_count / self.sample_rate
        return self.ends_at

    def mark(self, characters: int, sample: int) -> None:
        """Notes that the text up to an offset is spoken by a sample; marks never go back."""
        if self.mark_samples and sample < self.mark_samples[-1]:
            return
        self.mark_characters.append(characters)
        self.mark_samples.append(sample)

    def plays(self, now: float) -> bool:
        """Whether the client can be playing it, or is about to."""
        return self.queued_samples > 0 or self.ends_at > now

    def interrupt(self, now: float) -> None:
        """Notes that the listener cut the reply off; the first time counts."""
        self.queued_samples = 0
        if self.interrupted_samples is None:
            unplayed = int(max(0.0, self.ends_at - now) * self.sample_rate)
            self.interrupted_samples = max(0, self.sent_samples - unplayed)

    def truncate(self, audio_end_ms: int) -> int | None:
        """Shortens to a played position; never lengthens.

        Returns:
            The position in force in ms; None when the claim is past all that was sent.
        """
        if audio_end_ms > self.sent_ms + MAX_CLAIM_BEYOND_SENT_MS:
            return None
        end = min(audio_end_ms, self.sent_ms)
        if self.truncated_ms is None or end < self.truncated_ms:
            self.truncated_ms = end
        return self.truncated_ms

    def heard_samples(self) -> int | None:
        """Samples that can have been heard; None when the whole reply counts as heard."""
        if self.truncated_ms is not None:
            return self.truncated_ms * self.sample_rate // 1000
        return self.interrupted_samples

    def heard_text(self, text: str) -> str:
        """The part of the reply's text that can have been heard, cut at the end of a word.

        Between two marks the position is interpolated by characters; without marks nothing of
        an interrupted reply counts as heard.
        """
        samples = self.heard_samples()
        if samples is None:
            return text
        index = bisect.bisect_right(self.mark_samples, samples)
        characters = self.mark_characters[index - 1] if index else 0
        if index < len(self.mark_samples):
            start = self.mark_samples[index - 1] if index else 0
            share = (samples - start) / max(1, self.mark_samples[index] - start)
            characters += int(share * (self.mark_characters[index] - characters))
        return _whole_words(text, characters)


def _whole_words(text: str, characters: int) -> str:
    if characters >= len(text):
        return text
    if not text[characters].isspace() and characters > 0:
        while characters > 0 and not text[characters - 1].isspace():
            characters -= 1
    return text[:characters].rstrip()
