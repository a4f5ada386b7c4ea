"""Identity of this run of the process; a changed id exposes restarts and recycled addresses."""

from __future__ import annotations

import uuid

BOOT_ID = uuid.uuid4().hex
"""32 hex digits, new at each process start."""
