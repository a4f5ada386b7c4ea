"""How the benches of a CUDA device run: measured, kept where asked to, judged where asked to."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any


def run(
    options: argparse.Namespace,
    measure: Callable[[argparse.Namespace], dict[str, Any]],
    judge: Callable[[dict[str, Any]], int],
) -> int:
    """Measures, writes the raw figures to ``options.json`` if given, and judges with
    ``options.bars``; the exit status."""
    raw = measure(options)
    if options.json:
        options.json.write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    return judge(raw) if options.bars else 0
