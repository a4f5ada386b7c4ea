"""The tour reports what fails and goes on."""

from __future__ import annotations

import io
from pathlib import Path

from antiphon_cli.tour import Tour
from rich.console import Console


async def test_every_step_fails_by_name_when_nothing_answers(tmp_path: Path):
    output = io.StringIO()
    failed = await Tour("http://127.0.0.1:1", Console(file=output), tmp_path).run()
    assert failed == ["chat", "speech", "transcription", "realtime"]
    assert output.getvalue().count("failed:") == 4
