"""Antiphon's speech service: synthesis and recognition over gRPC."""

from __future__ import annotations

__version__ = "0.1.0"
