"""Settings that would be unsafe or useless are refused with what to do."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from antiphon_core.config import ConfigError, load_settings
from antiphon_gateway.config import GatewaySettings

DIGEST = hashlib.sha256(b"key").hexdigest()


def load(environ: dict[str, str] | None = None, *argv: str) -> GatewaySettings:
    return load_settings(GatewaySettings, section="gateway", argv=argv, environ=environ or {})


def test_open_to_the_network_needs_keys_or_the_open_mode() -> None:
    with pytest.raises(ConfigError, match="ANTIPHON_OPEN_MODE"):
        load(None, "--host", "0.0.0.0")
    assert load({"ANTIPHON_OPEN_MODE": "1"}, "--host", "0.0.0.0").open_mode
    assert load(None, "--host", "0.0.0.0", "--api-keys", f'["{DIGEST}"]').api_keys == [DIGEST]
    assert load(None, "--host", "::1").host == "::1"


def test_plain_keys_are_refused() -> None:
    with pytest.raises(ConfigError, match="sha256sum"):
        load({"ANTIPHON_GATEWAY_API_KEYS": '["sk-plain"]'})


def test_recogniser_follows_the_vocoder() -> None:
    settings = load(None, "--vocoder-targets", '["10.0.0.1:5"]')
    assert settings.recogniser_target == "10.0.0.1:5"


def test_targets_must_not_be_empty() -> None:
    with pytest.raises(ConfigError, match="llm_targets"):
        load(None, "--llm-targets", "[]")


def test_the_process_never_loads_numbers_libraries() -> None:
    code = (
        "import sys, antiphon_gateway.process; "
        "print([m for m in ('torch', 'numpy', 'onnxruntime', 'openai') if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"
