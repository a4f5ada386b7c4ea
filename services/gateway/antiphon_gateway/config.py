"""Settings of the gateway, section ``[gateway]`` of the suite's configuration file."""

from __future__ import annotations

import ipaddress
from typing import Self

from antiphon_core.config import Settings, setting
from pydantic import field_validator, model_validator

from antiphon_gateway.batches.settings import BatchSettings
from antiphon_gateway.identity.settings import IdentitySettings
from antiphon_gateway.quota.settings import QuotaSettings
from antiphon_gateway.realtime.settings import RealtimeSettings
from antiphon_gateway.store.settings import StoreSettings

OPENAI_VOICES = (
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
)
OPENAI_SPEECH_MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
OPENAI_RECOGNITION_MODELS = (
    "whisper-1",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-transcribe-diarize",
)

_SHA256_HEX_LENGTH = 64


class Limits(Settings):
    """Bounds on what one request may ask for or cost."""

    header_bytes: int = setting(16 * 1024, doc="Largest request head in bytes.", ge=1024)
    json_bytes: int = setting(32 * 1024 * 1024, doc="Largest JSON body in bytes.", ge=1024)
    json_depth: int = setting(64, doc="Deepest nesting of a JSON body.", ge=8)
    upload_bytes: int = setting(25 * 1024 * 1024, doc="Largest audio upload in bytes.", ge=1024)
    file_bytes: int = setting(512 * 1024 * 1024, doc="Largest uploaded file in bytes.", ge=1024)
    speech_characters: int = setting(4096, doc="Longest text of one speech request.", ge=1)
    body_idle_seconds: float = setting(
        10.0, doc="A body that brings nothing for so long is refused.", gt=0
    )
    request_seconds: float = setting(
        600.0, doc="Deadline of one request, passed on to the backends.", gt=0
    )
    stalled_reader_seconds: float = setting(
        30.0, doc="A reader that takes nothing for so long is disconnected.", gt=0
    )
    ping_seconds: float = setting(
        15.0, doc="Silence on an event stream after which a comment is sent.", gt=0
    )


class CorsSettings(Settings):
    """Which pages of other origins may call; none by default."""

    allowed_origins: list[str] = setting(
        doc="Origins such as https://app.example, or * for all; empty switches CORS off.",
        default_factory=list,
    )
    allow_credentials: bool = setting(
        False, doc="Let browsers send cookies and client certificates; never with *."
    )
    max_age_seconds: int = setting(600, doc="Browsers may remember a preflight for so long.", ge=0)

    @model_validator(mode="after")
    def _never_everybody_with_credentials(self) -> Self:
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ValueError("allow_credentials needs allowed_origins that are listed, not *")
        return self


class GatewaySettings(Settings):
    """Everything the gateway can be told."""

    host: str = setting("127.0.0.1", doc="Address of the HTTP listener.")
    port: int = setting(8081, doc="Port of the HTTP listener; 0 takes a free one.", ge=0, le=65535)
    ops_host: str = setting("127.0.0.1", doc="Address of the /metrics listener.")
    ops_port: int | None = setting(
        None, doc="Port of the /metrics listener; 0 takes a free one, unset opens none."
    )
    node_bind: str = setting(
        "127.0.0.1:0", doc="host:port of the gateway's NodeAdminService; port 0 takes a free one."
    )
    llm_targets: list[str] = setting(
        doc="gRPC targets of the llm services.", default_factory=lambda: ["127.0.0.1:8082"]
    )
    vocoder_targets: list[str] = setting(
        doc="gRPC targets of the vocoder services.", default_factory=lambda: ["127.0.0.1:8083"]
    )
    recognition_target: str = setting(
        "", doc="gRPC target of the recogniser; empty takes the first vocoder target."
    )
    egress_target: str = setting(
        "",
        doc="Envoy egress listener that calls go through; empty dials the targets directly. "
        "Status always comes from the targets themselves.",
    )
    default_model: str = setting(
        "", doc="Language model for an empty model or 'default'; empty takes the first served."
    )
    voice_aliases: dict[str, str] = setting(
        doc="Voice names that stand for a served voice; an empty value is the default voice.",
        default_factory=lambda: dict.fromkeys(OPENAI_VOICES, ""),
    )
    speech_model_aliases: dict[str, str] = setting(
        doc="Speech model names that stand for a served one; an empty value is the voice's own.",
        default_factory=lambda: dict.fromkeys(OPENAI_SPEECH_MODELS, ""),
    )
    recognition_model_aliases: dict[str, str] = setting(
        doc="Recogniser names that stand for a served one; an empty value is the default.",
        default_factory=lambda: dict.fromkeys(OPENAI_RECOGNITION_MODELS, ""),
    )
    api_keys: list[str] = setting(
        doc="SHA-256 (64 hex digits) of each accepted API key; empty asks for none.",
        secret=True,
        default_factory=list,
    )
    open_mode: bool = setting(
        False,
        doc="Allow a non-loopback listener without API keys.",
        environment="ANTIPHON_OPEN_MODE",
    )
    strict_fields: bool = setting(
        False, doc="Refuse unknown request fields instead of naming them in x-antiphon-ignored."
    )
    drain_notice_seconds: float = setting(
        5.0, doc="Time between not ready and the end of accepting, for balancers.", ge=0
    )
    drain_grace_seconds: float = setting(
        60.0, doc="Time that running requests get after that.", ge=0
    )
    log_level: str = setting("info", doc="debug, info, warning or error.")
    limits: Limits = setting(doc="Bounds on one request.", default_factory=Limits)
    identity: IdentitySettings = setting(
        doc="Credentials beside api_keys.", default_factory=IdentitySettings
    )
    store: StoreSettings = setting(doc="What outlives the process.", default_factory=StoreSettings)
    batches: BatchSettings = setting(
        doc="Bounds on batches, and on the work for them.", default_factory=BatchSettings
    )
    quota: QuotaSettings = setting(
        doc="What keys and tenants may use.", default_factory=QuotaSettings
    )
    cors: CorsSettings = setting(doc="Pages of other origins.", default_factory=CorsSettings)
    realtime: RealtimeSettings = setting(
        doc="Defaults and bounds of realtime sessions.", default_factory=RealtimeSettings
    )

    @field_validator("api_keys")
    @classmethod
    def _hashed_keys(cls, keys: list[str]) -> list[str]:
        for key in keys:
            if len(key) != _SHA256_HEX_LENGTH or set(key) - set("0123456789abcdef"):
                raise ValueError(
                    "each entry must be the lower-case SHA-256 hex digest of a key, "
                    "as `printf %s KEY | sha256sum` prints it"
                )
        return keys

    @field_validator("llm_targets", "vocoder_targets")
    @classmethod
    def _at_least_one(cls, targets: list[str]) -> list[str]:
        if not targets:
            raise ValueError("at least one target is needed")
        return targets

    @model_validator(mode="after")
    def _loopback_without_keys(self) -> Self:
        is_open = not self.api_keys and not self.identity.is_configured
        if is_open and not self.open_mode and not _is_loopback(self.host):
            raise ValueError(
                f"host {self.host!r} is not a loopback address and no api_keys are configured; "
                "add api_keys or [gateway.identity], bind to 127.0.0.1, or set ANTIPHON_OPEN_MODE=1"
            )
        return self

    @model_validator(mode="after")
    def _stored_keys_have_a_store(self) -> Self:
        if self.identity.stored_keys and not self.store.is_configured:
            raise ValueError("identity.stored_keys needs store.directory")
        return self

    @property
    def recogniser_target(self) -> str:
        """The target that recognition dials."""
        return self.recognition_target or self.vocoder_targets[0]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
