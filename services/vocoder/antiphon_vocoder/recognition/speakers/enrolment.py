"""Known speakers: from samples of their voices to embeddings."""

from __future__ import annotations

import numpy as np
from antiphon_core.errors import InvalidArgument
from numpy.typing import NDArray

from antiphon_vocoder.formats.decode import decode_audio
from antiphon_vocoder.recognition.speakers.embedder import RATE, Embedder, Embedding, VoiceUnheard
from antiphon_vocoder.recognition.speakers.options import KnownSpeaker

MIN_SECONDS, MAX_SECONDS = 2.0, 10.0


def enrol(speakers: list[KnownSpeaker], embedder: Embedder) -> dict[str, Embedding]:
    """Embeddings by name.

    Raises:
        InvalidArgument: INVALID_AUDIO naming the sample that cannot be decoded, is too short or too
            long, or holds no voice.
    """
    return {
        speaker.name: _voice(speaker.audio, embedder, sample_field(index))
        for index, speaker in enumerate(speakers)
    }


def sample_field(index: int) -> str:
    """Path of a known speaker's sample."""
    return f"config.diarization.known_speakers[{index}].audio"


def _voice(data: bytes, embedder: Embedder, field: str) -> Embedding:
    samples = _decoded(data, field)
    seconds = len(samples) / RATE
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise _out_of_range(field, f"{seconds:.2f} s")
    try:
        return embedder.embed(samples)
    except VoiceUnheard as error:
        raise InvalidArgument(
            f"{field} holds no voice ({error})", reason="INVALID_AUDIO", field=field
        ) from error


def _decoded(data: bytes, field: str) -> NDArray[np.float32]:
    try:
        return decode_audio(data, RATE, max_seconds=MAX_SECONDS)
    except InvalidArgument as error:
        if error.reason == "TOO_LARGE":
            raise _out_of_range(field, f"more than {MAX_SECONDS:g} s") from error
        raise InvalidArgument(
            f"{field}: {error.message}", reason="INVALID_AUDIO", field=field
        ) from error


def _out_of_range(field: str, observed: str) -> InvalidArgument:
    limit = f"{MIN_SECONDS:g} to {MAX_SECONDS:g} s"
    return InvalidArgument(
        f"{field} must be {limit} long, it is {observed}",
        reason="INVALID_AUDIO",
        field=field,
        allowed=(limit,),
        metadata={"limit": limit, "observed": observed},
    )
