"""Claims that are tests already: run as they are, and read for what they saw."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as Xml
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What a run of tests came to."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    properties: dict[str, float] = field(default_factory=dict)
    """What the tests recorded with ``record_property``."""


def run_tests(*selection: str, seconds: float = 600.0) -> Outcome:
    """Runs tests in a process of their own.

    Args:
        selection: arguments of pytest.
        seconds: limit of the run; one that does not end counts as failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = (sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *selection)
        try:
            subprocess.run(command, cwd=ROOT, timeout=seconds, stdout=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return Outcome(failed=[f"not over in {seconds:g} s"])
        if not report.exists():
            return Outcome(failed=["pytest made no report"])
        return _read(report)


def _read(report: Path) -> Outcome:
    outcome = Outcome()
    for case in Xml.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed.append(str(case.get("name")))
        elif case.find("skipped") is None:
            outcome.passed += 1
        for item in case.iter("property"):
            outcome.properties[str(item.get("name"))] = float(str(item.get("value")))
    return outcome
