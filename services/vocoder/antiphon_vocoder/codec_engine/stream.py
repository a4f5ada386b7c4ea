"""State of one stream in the codec process: what it waits for, how far it and its listener are."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.codec_engine.hops import HopPlan
from antiphon_vocoder.codec_messages import Stage

FIRST_AUDIO_SECONDS = 0.150
"""A stream without output yet is due so long after its first hop could have run."""
TAIL = 0
"""The length of the hop that gives the samples a decoder holds back at a stream's end."""


class StepKey(NamedTuple):
    """What hops must have in common to run in one step."""

    codec: str
    stage: Stage
    frames: int
    """``TAIL`` for the end of a decoder that trails its input."""


class UnitQueue:
    """Input that waits: arrays joined along their first axis."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        """``shape`` is that of one unit; () for samples."""
        self._empty: NDArray[Any] = np.zeros((0, *shape), dtype)
        self._parts: deque[NDArray[Any]] = deque()
        self._taken = 0
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, part: NDArray[Any]) -> None:
        """Adds units (n, ...)."""
        if len(part):
            self._parts.append(part)
            self._length += len(part)

    def peek(self, count: int) -> NDArray[Any]:
        """The first ``count`` units, or all if there are fewer."""
        found: list[NDArray[Any]] = []
        start, left = self._taken, count
        for part in self._parts:
            if left <= 0:
                break
            found.append(part[start : start + left])
            left -= len(found[-1])
            start = 0
        return np.concatenate(found) if found else self._empty

    def drop(self, count: int) -> None:
        """Forgets the first ``count`` units."""
        count = min(count, self._length)
        self._length -= count
        self._taken += count
        while self._parts and self._taken >= len(self._parts[0]):
            self._taken -= len(self._parts.popleft())

    def clear(self) -> None:
        """Forgets all."""
        self._parts.clear()
        self._taken = self._length = 0


class HopStream:
    """One stream.

    Args:
        key: (slot, generation).
        plan: where it is cut.
        frame_samples: samples of a frame.
        frame_seconds: length of a frame.
        codebooks: codebooks of its frames.
        lookahead: samples that an encoder must see behind a hop's frames.
        lookahead_fill: stands for those of them that are past the end.
        delay: samples by which a decoder's output trails.
        lead_frames: frames of unsent output from which it is not scheduled.

    Attributes:
        next: what its next hop needs of a step; None while it has to wait.
        deadline: when that hop's output is due, on the caller's clock.
        ready_at: since when that hop could run.
        fresh: its slot has to be zeroed before the next hop.
        in_flight: hops that were taken and not yet finished.
    """

    def __init__(
        self,
        key: tuple[int, int],
        codec: str,
        stage: Stage,
        plan: HopPlan,
        *,
        frame_samples: int,
        frame_seconds: float,
        codebooks: int,
        lookahead: int,
        delay: int,
        lead_frames: int,
        lookahead_fill: float = 0.0,
    ) -> None:
        self.key = key
        self.codec = codec
        self.stage = stage
        self.codebooks = codebooks
        self.epoch = 0
        self.closed = False
        self.fresh = True
        self.ended = False
        self.in_flight = 0
        self.next: StepKey | None = None
        self.deadline = 0.0
        self.ready_at = 0.0
        self.trimmed = 0
        """Samples of a trailing decoder that were dropped at the begin."""
        self._plan = plan
        self._frame_samples = frame_samples
        self._frame_seconds = frame_seconds
        self._lookahead = lookahead
        self._lookahead_fill = lookahead_fill
        self._delay = delay
        self._lead_frames = lead_frames
        decodes = stage is Stage.DECODE
        self.queue = UnitQueue((codebooks,), np.int32) if decodes else UnitQueue((), np.float32)
        self._position = 0
        self._forced = 0
        self._tail_due = False
        self._launched = 0
        self._delivered = 0
        self._first_output_at: float | None = None

    @property
    def slot(self) -> int:
        """Its row of the state."""
        return self.key[0]

    @property
    def position(self) -> int:
        """Frames of this epoch that were run."""
        return self._position

    def push(self, data: bytes, now: float) -> None:
        """Takes input."""
        if self.stage is Stage.DECODE:
            self.queue.append(np.frombuffer(data, "<i4").reshape(-1, self.codebooks))
        else:
            self.queue.append(np.frombuffer(data, "<f4"))
        self.refresh(now)

    def flush(self, now: float, *, last: bool) -> None:
        """Lets what is buffered run without waiting for whole hops; pads an encoder's end."""
        if last:
            self.ended = True
            self._pad_end()
            self._tail_due = self._delay > 0 and self._available > 0
        self._forced = self._available
        self.refresh(now)

    def clear(self, epoch: int, now: float) -> int:
        """Forgets what was not run and begins anew; returns how many hops that saved at least."""
        dropped = self.pending_hops
        self.queue.clear()
        self.epoch = epoch
        self._position = self._forced = self.trimmed = 0
        self._tail_due = False
        self._first_output_at = None
        self.fresh = True
        self.refresh(now)
        return dropped

    def delivered(self, frame_count: int, now: float) -> None:
        """So many frames of output, over all epochs, have left for the client."""
        self._delivered = frame_count
        self.refresh(now)

    def take(self) -> NDArray[Any]:
        """The input of the next hop: codes (T, k), or samples (T * frame + lookahead,).

        The frames count as run; ``next`` is stale until ``refresh``.
        """
        assert self.next is not None
        self.in_flight += 1
        frames = self.next.frames
        if frames == TAIL:
            self._tail_due = False
            return self.queue.peek(0)
        units = frames * self._units_a_frame
        values = self.queue.peek(units + self._lookahead)
        self.queue.drop(units)
        self._position += frames
        self._launched += frames
        return values

    @property
    def drained(self) -> bool:
        """Whether the input has ended and every hop of it was taken."""
        return self.ended and self._position >= self._available and not self._tail_due

    @property
    def over(self) -> bool:
        """Whether no output comes any more."""
        return self.drained and self.in_flight == 0

    @property
    def pending_hops(self) -> int:
        """Hops that could run now or once the listener has caught up."""
        position, count = self._position, 0
        while (length := self._next_length(position)) > 0:
            position += length
            count += 1
        return count + self._tail_due

    def refresh(self, now: float) -> None:
        """Finds the next hop and its deadline after a change."""
        length = self._next_length(self._position)
        waits = self._launched - self._delivered >= self._lead_frames
        if self.closed or waits:
            self.next = None
        elif length > 0:
            self._set_next(length, now)
        elif self._tail_due and self._position >= self._available:
            self._set_next(TAIL, now)
        else:
            self.next = None

    def slack(self, now: float) -> float:
        """Seconds until the listener has played all that was run."""
        return self.deadline_of_output() - now if self._first_output_at is not None else 0.0

    def deadline_of_output(self) -> float:
        """When the listener runs dry."""
        assert self._first_output_at is not None
        return self._first_output_at + self._launched * self._frame_seconds

    def note_output(self, frames: int, now: float) -> float:
        """Counts output as sent; returns the slack it came with.

        A listener that ran dry starts anew: playback moves on.
        """
        begun = (self._launched - frames) * self._frame_seconds
        if self._first_output_at is None:
            self._first_output_at = now - begun
            return 0.0
        slack = self._first_output_at + begun - now
        if slack < 0:
            self._first_output_at = now - begun
        return slack

    def _set_next(self, frames: int, now: float) -> None:
        if self.next is None:
            self.ready_at = now
        self.next = StepKey(self.codec, self.stage, frames)
        self.deadline = self.ready_at + FIRST_AUDIO_SECONDS
        if self._first_output_at is not None and self.stage is Stage.DECODE:
            dry_at = self.deadline_of_output()
            # Who ran dry before there was input is as one who has heard nothing yet.
            if dry_at > self.ready_at:
                self.deadline = dry_at

    def _next_length(self, position: int) -> int:
        return self._plan.next_hop(position, self._available, self._forced, ended=self.ended)

    @property
    def _units_a_frame(self) -> int:
        return 1 if self.stage is Stage.DECODE else self._frame_samples

    @property
    def _available(self) -> int:
        """Frames of this epoch whose input is complete."""
        units = max(len(self.queue) - self._lookahead, 0)
        return self._position + units // self._units_a_frame

    def _pad_end(self) -> None:
        """Zeros to a whole frame and, past it, what the encoder looks ahead at."""
        if self.stage is Stage.ENCODE:
            missing = -len(self.queue) % self._frame_samples
            self.queue.append(np.zeros(missing, np.float32))
            self.queue.append(np.full(self._lookahead, self._lookahead_fill, np.float32))
