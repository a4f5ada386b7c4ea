"""What waits to be sent to one client: in order, control events never dropped, audio by credit."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from antiphon_gateway.realtime import events
from antiphon_gateway.realtime.commands import AudioTag, Send

MAX_UNSENT_AUDIO_BYTES = 256 * 1024
MAX_UNSENT_AUDIO_SECONDS = 2.0
MAX_QUEUED_BYTES = 48 * 1024 * 1024
"""Two retrieved items with all the audio that a conversation keeps, in base64, and some more."""


class QueueFull(Exception):
    """More waits than any reader that makes progress leaves waiting."""


@dataclass(frozen=True, slots=True)
class Frame:
    """An encoded event."""

    data: bytes
    audio: AudioTag | None


class SendQueue:
    """Frames in order. Events are encoded as they come: what they say is what was so then."""

    def __init__(self) -> None:
        self._frames: deque[Frame] = deque()
        self.queued_bytes = 0
        self.unsent_bytes = 0
        self.unsent_seconds = 0.0

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def has_credit(self) -> bool:
        """Whether more audio may be queued."""
        return (
            self.unsent_bytes < MAX_UNSENT_AUDIO_BYTES
            and self.unsent_seconds < MAX_UNSENT_AUDIO_SECONDS
        )

    def put(self, item: Send) -> None:
        """Queues an event.

        Raises:
            QueueFull: the queue is at its bound; nothing was dropped.
        """
        data = events.encode(item.event)
        if self.queued_bytes + len(data) > MAX_QUEUED_BYTES and self._frames:
            raise QueueFull
        self._frames.append(Frame(data, item.audio))
        self.queued_bytes += len(data)
        if item.audio is not None:
            self._count(item.audio, 1)

    def pop(self) -> Frame:
        """Takes the next frame out; its audio counts as unsent until ``sent``."""
        frame = self._frames.popleft()
        self.queued_bytes -= len(frame.data)
        return frame

    def sent(self, audio: AudioTag) -> None:
        """Audio that was popped has left."""
        self._count(audio, -1)

    def silence(self, lane: str, generation: int) -> None:
        """Drops queued audio of a lane that is older than the generation."""
        kept: deque[Frame] = deque()
        for frame in self._frames:
            audio = frame.audio
            if audio is not None and audio.lane == lane and audio.generation < generation:
                self.queued_bytes -= len(frame.data)
                self._count(audio, -1)
            else:
                kept.append(frame)
        self._frames = kept

    def _count(self, audio: AudioTag, sign: int) -> None:
        self.unsent_bytes += sign * audio.byte_count
        self.unsent_seconds += sign * audio.seconds
        if not self.unsent_bytes:
            self.unsent_seconds = 0.0
