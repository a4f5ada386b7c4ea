"""The output side of a speech stream: samples in, audio events of bounded size out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import NDArray

from antiphon_vocoder.formats import Encoding
from antiphon_vocoder.formats.encode import AudioEncoder
from antiphon_vocoder.speech import Audio

MAX_DATA_BYTES = 63 * 1024
"""A message stays within 64 KiB with its other fields."""
_BYTES_A_SAMPLE = {Encoding.PCM16: 2, Encoding.PCMU: 1, Encoding.PCMA: 1}


class SpeechOutput:
    """Encodes off the event loop and emits.

    Args:
        encoding: of the bytes.
        source_rate: samples a second of what is written.
        rate: samples a second of the output, as ``resolve_rate`` gives it.
        exact_container: see AudioEncoder's ``exact_sizes``.
        emit: takes each event; returns when it is on its way.
    """

    def __init__(
        self,
        encoding: Encoding,
        source_rate: int,
        rate: int,
        *,
        exact_container: bool,
        emit: Callable[[Audio], Awaitable[None]],
    ) -> None:
        self._encoder = AudioEncoder(encoding, source_rate, rate, exact_sizes=exact_container)
        self._source_rate = source_rate
        self._rate = rate
        self._bytes_a_sample = _BYTES_A_SAMPLE.get(encoding)
        self._emit = emit
        self._announced = 0
        self.source_count = 0
        """Samples written, at the source's rate."""

    @property
    def sample_count(self) -> int:
        """Samples at the output rate that the samples written so far make in the end."""
        return self.sample_at(self.source_count)

    def sample_at(self, source_sample: int) -> int:
        """The output sample for one at the source's rate."""
        return -(-source_sample * self._rate // self._source_rate)

    async def write(self, samples: NDArray[np.float32]) -> None:
        """Encodes samples (n,) at the source's rate and emits what that completes."""
        self.source_count += len(samples)
        data = await asyncio.to_thread(self._encoder.write, samples)
        await self._send(data)

    async def finish(self) -> None:
        """Emits the rest of the file."""
        data = await asyncio.to_thread(self._encoder.finish)
        await self._send(data)

    async def _send(self, data: bytes) -> None:
        """Headerless formats tell each message's own samples; in others the message that brings
        bytes announces all samples encoded since the last."""
        for start in range(0, len(data), MAX_DATA_BYTES):
            part = data[start : start + MAX_DATA_BYTES]
            if self._bytes_a_sample is not None:
                count = len(part) // self._bytes_a_sample
            else:
                count = self._encoder.sample_count - self._announced
            first, self._announced = self._announced, self._announced + count
            await self._emit(Audio(part, first, count))
