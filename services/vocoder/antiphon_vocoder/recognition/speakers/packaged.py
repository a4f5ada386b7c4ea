"""Where the default speaker model lies."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_PACKAGE = "resemblyzer"
_FILE = "pretrained.pt"


def packaged_model() -> Path | None:
    """The packaged checkpoint; None where the package is not installed."""
    # find_spec does not import the package, which would bring in torch.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / _FILE
    return path if path.is_file() else None
