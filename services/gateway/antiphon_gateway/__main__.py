"""``python -m antiphon_gateway``: the gateway process."""

from __future__ import annotations

from types import ModuleType

from antiphon_core import collector


def load() -> ModuleType:
    """Everything that the process consists of, imported."""
    with collector.paused():
        from antiphon_gateway import process
    return process


def main() -> None:
    """Entry point; see ``process.main``."""
    load().main()


if __name__ == "__main__":
    main()
