"""Settings of realtime sessions: the gateway's table ``[gateway.realtime]``."""

from __future__ import annotations

from antiphon_core.config import Settings, setting

REALTIME_MODELS = ("gpt-realtime", "gpt-realtime-mini", "gpt-4o-realtime-preview")


class RealtimeSettings(Settings):
    """Defaults of a session and bounds of a connection."""

    instructions: str = setting(
        "Answer in one or two short sentences.",
        doc="Default instructions of a session; small models follow short ones best.",
    )
    max_output_tokens: int = setting(
        120, ge=1, doc="Default longest reply in tokens; a session may say otherwise, also inf."
    )
    temperature: float | None = setting(
        None, ge=0, le=2, doc="Default sampling temperature; unset takes the model's own."
    )
    model_aliases: dict[str, str] = setting(
        doc="Names that stand for a pipeline of a served language model; an empty value is the "
        "default model.",
        default_factory=lambda: dict.fromkeys(REALTIME_MODELS, ""),
    )
    voice: str = setting("", doc="Default voice; empty takes the vocoder's default.")
    transcription: bool = setting(
        True, doc="Whether sessions report input transcripts unless they say otherwise."
    )
    silence_duration_ms: int = setting(
        500, ge=100, le=10_000, doc="Default silence in ms that ends a turn under server_vad."
    )
    audio_lead_ms: int = setting(
        10_000,
        ge=500,
        le=600_000,
        doc="Default of how far sent audio runs ahead of its estimated playback, in ms.",
    )
    speculative_ms: int = setting(
        0,
        ge=0,
        le=2000,
        doc="Default silence in ms (100 or more) after which a reply is prepared before the turn "
        "has ended; 0 prepares none. Costs tokens of replies that are dropped.",
    )
    compaction_share: float = setting(
        0.75,
        ge=0,
        le=0.95,
        doc="Share of the model's context at which old conversation is summarised in the "
        "background; 0 never summarises.",
    )
    secret_key: str = setting(
        "",
        secret=True,
        doc="Key that seals client secrets; equal on all replicas. Empty draws one per process.",
    )
    max_session_seconds: int = setting(3600, ge=10, doc="Longest session in seconds.")
    input_idle_seconds: int = setting(
        600, ge=5, doc="Seconds without any client event after which a session is closed."
    )
    send_stall_seconds: float = setting(
        20.0, gt=0, doc="Seconds without progress of the socket after which it is closed (1008)."
    )
    max_connections: int = setting(
        256, ge=1, doc="Open sessions of this process; more are refused with 429."
    )
