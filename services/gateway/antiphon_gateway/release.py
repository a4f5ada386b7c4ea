"""Which release this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def release() -> str:
    """The installed version."""
    try:
        return version("antiphon-gateway")
    except PackageNotFoundError:
        return "unreleased"
