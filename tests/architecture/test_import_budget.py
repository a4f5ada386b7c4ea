"""The import budget: what a process costs before it can bind its port. The limits only go down."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

BUDGETS = {
    "antiphon_gateway.__main__": 1.1,
    "antiphon_llm.__main__": 1.5,
}
"""CPU seconds, user and system, from the interpreter's start to the end of the import.

The gateway's aim is 0.7 (ARCHITECTURE section 9) and is not reached: 0.88 on a 2.4 GHz Zen 3,
of which grpc, pydantic, uvicorn, starlette, structlog and prometheus-client take 0.53. The limit
holds what is reached, with room for a noisy host.
"""

_ATTEMPTS = 3


def import_seconds(module: str, bytecode: Path) -> float:
    """CPU seconds of a fresh interpreter that imports the module."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bytecode)}
    # Where it is set, every import compiles its source again, which no installation does.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"import {module}"], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize(("module", "budget"), BUDGETS.items())
def test_a_service_process_imports_within_its_budget(
    module: str, budget: float, tmp_path: Path
) -> None:
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip("the machine is busy: shared caches and cores make CPU time mean nothing")
    import_seconds(module, tmp_path)  # writes the bytecode
    best = min(import_seconds(module, tmp_path) for _ in range(_ATTEMPTS))
    assert best <= budget, f"importing {module} took {best:.2f} s of CPU, allowed {budget} s"
