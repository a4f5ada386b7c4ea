"""Settings of quotas, section ``[gateway.quota]``."""

from __future__ import annotations

from antiphon_core.config import Settings, setting

from antiphon_gateway.quota.limits import QuotaLimits


class LimitSettings(Settings):
    """Limits of one key or tenant; unset sets none."""

    requests_per_second: float | None = setting(None, doc="Requests a second.", gt=0)
    tokens_per_second: float | None = setting(
        None, doc="Prompt and output tokens a second, together.", gt=0
    )
    tokens_per_day: int | None = setting(None, doc="Tokens a day (UTC).", ge=1)
    audio_seconds_per_day: float | None = setting(
        None, doc="Seconds of speech made and of audio recognised a day, together.", gt=0
    )
    concurrency: int | None = setting(None, doc="Requests at a time.", ge=1)
    burst_seconds: float = setting(10.0, doc="Rates may be saved up for so long.", gt=0)

    @property
    def limits(self) -> QuotaLimits:
        """The same as quotas take them."""
        return QuotaLimits(**self.model_dump())


class QuotaSettings(Settings):
    """Limits that do not stand with a key."""

    key: LimitSettings = setting(
        doc="Of each key that names none of its own.", default_factory=LimitSettings
    )
    tenant: LimitSettings = setting(doc="Of each tenant.", default_factory=LimitSettings)
    tenants: dict[str, LimitSettings] = setting(
        doc="Of single tenants, in place of those of each.", default_factory=dict
    )
    assumed_output_tokens: int = setting(
        1024, doc="Reserved for a request that names no maximum; the rest is charged after.", ge=1
    )
