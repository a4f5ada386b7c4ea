"""The input audio buffer: every byte that comes in is used once or dropped."""

from __future__ import annotations

from antiphon_gateway.realtime.formats import WireFormat, sample_bytes, sample_rate

TRIM_MARGIN_MS = 10_000
"""Quiet audio kept beyond the padding: a start that is reported later has lost its beginning."""


class InputBuffer:
    """Bytes that are not yet part of an item. Offsets count from the first byte ever appended."""

    def __init__(self, form: WireFormat) -> None:
        self._set_form(form)
        self.received = 0
        self.used = 0
        self.dropped = 0
        self._origin_ms = 0
        self._origin = 0
        self._base = 0
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    @property
    def held_ms(self) -> int:
        """Length of what is held."""
        return len(self._data) * 1000 // self.byte_rate

    @property
    def start_ms(self) -> int:
        """Position of the first byte held."""
        return self._milliseconds(self._base)

    @property
    def end_ms(self) -> int:
        """Position after the last byte received."""
        return self._milliseconds(self.received)

    def append(self, data: bytes) -> None:
        """Adds audio of any length."""
        self._data += data
        self.received += len(data)

    def take(self, start_ms: int, end_ms: int) -> bytes:
        """Uses [start, end) and drops what lies before it; what lies after stays."""
        start = self._offset(start_ms)
        end = max(start, self._offset(end_ms))
        taken = bytes(self._data[start - self._base : end - self._base])
        self.dropped += start - self._base
        self.used += len(taken)
        del self._data[: end - self._base]
        self._base = end
        return taken

    def take_all(self) -> bytes:
        """Uses all whole samples; half a sample stays, for its other half is to come."""
        length = len(self._data) - len(self._data) % self._sample_bytes
        taken = bytes(self._data[:length])
        self.used += length
        self._base += length
        del self._data[:length]
        return taken

    def clear(self) -> None:
        """Drops everything that is held."""
        self.dropped += len(self._data)
        self._base += len(self._data)
        self._data.clear()

    def trim(self, keep_ms: int) -> None:
        """Drops all but the newest audio."""
        excess = len(self._data) - keep_ms * self.byte_rate // 1000
        excess -= excess % self._sample_bytes
        if excess > 0:
            self.dropped += excess
            self._base += excess
            del self._data[:excess]

    def content(self) -> bytes:
        """A copy of what is held."""
        return bytes(self._data)

    def change_format(self, form: WireFormat) -> None:
        """Drops what is held and counts on in another format; positions in ms go on."""
        self.clear()
        self._origin_ms = self.end_ms
        self._origin = self.received
        self._set_form(form)

    def _set_form(self, form: WireFormat) -> None:
        self.form = form
        self._sample_bytes = sample_bytes(form)
        self.byte_rate = sample_rate(form) * self._sample_bytes
        """Bytes a second."""

    def _milliseconds(self, offset: int) -> int:
        return self._origin_ms + (offset - self._origin) * 1000 // self.byte_rate

    def _offset(self, milliseconds: int) -> int:
        width = self._sample_bytes
        count = max(0, milliseconds - self._origin_ms) * self.byte_rate // 1000
        offset = self._origin + count - count % width
        return min(max(offset, self._base), self.received)
