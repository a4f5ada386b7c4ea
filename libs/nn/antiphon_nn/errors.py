"""Errors of checkpoint loading."""

from __future__ import annotations

from pathlib import Path


class CheckpointError(ValueError):
    """A checkpoint cannot be used: the message names the file, the fault and what is expected."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem
