"""Settings of the speech service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from antiphon_core.config import Settings, setting
from pydantic import model_validator

from antiphon_vocoder.codec_messages import Precision
from antiphon_vocoder.recognition.config import RecognitionSettings

_SLOTS_PER_CORE = 4
"""A Piper stream costs about 0.15 s of work a second of audio: four to a core stay in real time
with room for recognition beside them."""
_QUEUE_PER_SLOT = 4


class VocoderSettings(Settings):
    """Section [vocoder]."""

    bind: str = setting("127.0.0.1:8083", doc="host:port or unix:path to serve gRPC on")
    slots: int = setting(0, doc="speech streams at once; 0 takes four a core", ge=0, le=4096)
    queue_limit: int = setting(
        0, doc="streams that wait for a slot before refusal; 0 takes four a slot", ge=0, le=65536
    )
    voices_dir: Path | None = setting(
        None, doc="directory of further Piper voices, <voice>.onnx with <voice>.onnx.json"
    )
    default_voice: str = setting(
        "", doc="id of the voice that speaks where none is named; empty takes the packaged one"
    )
    workers: int = setting(
        0, doc="hops that the speech model process runs at once; 0 takes the cores", ge=0, le=256
    )
    hop_threads: int = setting(1, doc="threads of one hop", ge=1, le=64)
    gain: float = setting(1.5, doc="factor on every sample of speech", gt=0, le=8)
    stream_idle_s: float = setting(
        30.0, doc="seconds without input, with nothing left to say, that end a stream", gt=0
    )
    lead_s: float = setting(
        30.0, doc="seconds of unsent audio from which a stream is not worked on", gt=0
    )
    max_stream_s: float = setting(3600.0, doc="longest audio of one stream in seconds", gt=0)
    progress_s: float = setting(
        15.0, doc="seconds without a message after which progress is sent", gt=0
    )
    codecs: list[str] = setting(
        doc="codec checkpoints to serve, each a directory or name=directory, the default first; "
        "none: no codec process, and requests with codes are refused",
        default_factory=list,
    )
    codec_voices: dict[str, str] = setting(
        doc="voice ids that speak codes, each with the name of its codec", default_factory=dict
    )
    voice_store_dir: Path | None = setting(
        None,
        doc="directory of the voices that tenants make, shared by all replicas; none keeps none",
    )
    require_consent: bool = setting(True, doc="refuse a voice without the consent of its speaker")
    voices_per_tenant: int = setting(
        1000, doc="voices that one tenant may have in voice_store_dir", ge=1
    )
    codec_slots: int = setting(
        0,
        doc="codec streams at once; 0 takes what memory_gib holds and the measured speed allows",
        ge=0,
        le=4096,
    )
    device: str = setting(
        "cpu", doc="where codecs run: cpu, cuda or cuda:N", pattern=r"^(cpu|cuda(:\d+)?)$"
    )
    dtype: Precision = setting(
        "fp32", doc="precision of the codecs' products; quantiser and spectra are always fp32"
    )
    memory_gib: float = setting(
        0.0,
        doc="memory of the device for weights, workspaces and the state of all codec slots; "
        "0 takes four fifths of what is free",
        ge=0,
    )
    codec_threads: int = setting(
        0, doc="threads of the codec process on a cpu; 0 takes the cores", ge=0, le=256
    )
    codec_rungs: tuple[int, ...] = setting(
        (1, 4, 16, 64, 256), doc="rows that a codec step may have, ascending", min_length=1
    )
    decode_ramp: tuple[int, ...] = setting(
        (1, 2, 2, 4),
        doc="first hops of decoded codes in units of 80 ms; the last repeats. Codes at 1.5 times "
        "real time leave 73 ms of slack in it; a producer that is no faster than real time needs 1",
        min_length=1,
    )
    encode_ramp: tuple[int, ...] = setting(
        (1,), doc="hops of encoded audio in units of 80 ms; the last repeats", min_length=1
    )
    peer_wait_ms: float = setting(
        2.0,
        doc="milliseconds that a codec hop whose listener has 50 ms to spare may wait for others",
        ge=0,
        le=50,
    )
    drain_delay_s: float = setting(
        0.0, doc="seconds between not ready and refusing, for balancers to notice", ge=0
    )
    drain_grace_s: float = setting(60.0, doc="seconds for running streams at shutdown", ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", doc="log level")
    log_console: bool = setting(False, doc="coloured log lines for people in place of JSON")
    recognition: RecognitionSettings = setting(
        doc="speech recognition", default_factory=RecognitionSettings
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if min(self.codec_rungs) < 1 or list(self.codec_rungs) != sorted(set(self.codec_rungs)):
            raise ValueError("codec_rungs must be ascending and at least 1")
        if min(*self.decode_ramp, *self.encode_ramp) < 1:
            raise ValueError("decode_ramp and encode_ramp must be at least 1")
        if self.codec_voices and not self.codecs:
            raise ValueError("codec_voices needs codecs")
        return self

    @property
    def slot_count(self) -> int:
        """Speech streams at once."""
        return self.slots or _SLOTS_PER_CORE * usable_cores()

    @property
    def queue_count(self) -> int:
        """Streams that may wait for a slot."""
        return self.queue_limit or _QUEUE_PER_SLOT * self.slot_count

    @property
    def worker_count(self) -> int:
        """Hops that run at once."""
        return self.workers or usable_cores()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
