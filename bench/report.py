"""BAR lines and result files: shared by every `make bars-<area>`."""

from __future__ import annotations

import json
import operator
import platform
import subprocess
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

BENCH = Path(__file__).resolve().parent
OPERATORS = {"<=": operator.le, ">=": operator.ge}


@dataclass(frozen=True)
class Bar:
    """One measured claim against its limit."""

    name: str
    value: float
    unit: str
    op: str
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the value keeps to the limit."""
        return bool(OPERATORS[self.op](self.value, self.limit))

    def line(self) -> str:
        """The line that a bars target prints."""
        verdict = "pass" if self.passed else "fail"
        return f"BAR {self.name} {self.value:g} {self.unit} {self.op} {self.limit:g} {verdict}"


class Report:
    """Collects the bars of one area, prints each as it comes and writes the result file."""

    def __init__(self, area: str) -> None:
        self._area = area
        with (BENCH / "bars.toml").open("rb") as file:
            self._limits = tomllib.load(file)[area]
        self._bars: list[Bar] = []
        self._raw: dict[str, Any] = {}

    def add(self, name: str, value: float, raw: Any = None) -> None:
        """Judges one value.

        Raises:
            KeyError: when bars.toml has no such bar.
        """
        limit = self._limits[name]
        bar = Bar(f"{self._area}.{name}", value, limit["unit"], limit["op"], limit["limit"])
        self._bars.append(bar)
        self._raw[name] = value if raw is None else raw
        print(bar.line(), flush=True)

    def finish(self) -> int:
        """Writes bench/results/<area>-<machine>-<commit>.json; the exit status to use."""
        revision, host = commit(), machine()
        path = BENCH / "results" / f"{self._area}-{host['name']}-{revision}.json"
        path.parent.mkdir(exist_ok=True)
        record = {
            "area": self._area,
            "commit": revision,
            "machine": host,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "bars": [vars(bar) | {"passed": bar.passed} for bar in self._bars],
            "raw": self._raw,
        }
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        print(f"results: {path.relative_to(BENCH.parent)}")
        return 0 if all(bar.passed for bar in self._bars) else 1


def commit() -> str:
    """The revision that was measured, 12 hex digits."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, cwd=BENCH, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def machine() -> dict[str, Any]:
    """What was measured on, as the result files have it."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    cores = psutil.cpu_count() or 0
    return {
        "name": f"{platform.machine()}-{cores}cpu",
        "cpu": model,
        "cores": cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": psutil.getloadavg(),
        "python": platform.python_version(),
    }
