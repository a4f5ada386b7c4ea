"""Audio formats of the wire: samples a second and bytes a sample."""

from __future__ import annotations

from msgspec import Struct

from antiphon_gateway.domain.speech import AudioFormat

PCM_RATES = (8000, 16000, 24000, 48000)


class Pcm(Struct, frozen=True, tag="audio/pcm", tag_field="type", forbid_unknown_fields=True):
    """Signed 16-bit little-endian mono samples."""

    rate: int = 24000

    def __post_init__(self) -> None:
        if self.rate not in PCM_RATES:
            raise ValueError(f"rate must be one of {', '.join(map(str, PCM_RATES))}")


class Pcmu(Struct, frozen=True, tag="audio/pcmu", tag_field="type", forbid_unknown_fields=True):
    """G.711 mu-law, 8 kHz, one byte a sample."""


class Pcma(Struct, frozen=True, tag="audio/pcma", tag_field="type", forbid_unknown_fields=True):
    """G.711 A-law, 8 kHz, one byte a sample."""


WireFormat = Pcm | Pcmu | Pcma


def sample_rate(form: WireFormat) -> int:
    """Samples a second."""
    return form.rate if isinstance(form, Pcm) else 8000


def sample_bytes(form: WireFormat) -> int:
    """Bytes a sample."""
    return 2 if isinstance(form, Pcm) else 1


def backend_format(form: WireFormat) -> AudioFormat:
    """The format as backends name it."""
    encoding = {Pcm: "pcm16", Pcmu: "pcmu", Pcma: "pcma"}[type(form)]
    return AudioFormat(encoding, sample_rate(form))
