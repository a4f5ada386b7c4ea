"""Where adapters may be read from: beneath one directory, symbolic links resolved."""

from __future__ import annotations

from pathlib import Path

from .refusal import AdapterRefused

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_LONGEST_PATH = 1024


class AdapterRoot:
    """The directory that holds adapters.

    Args:
        path: as configured.

    Raises:
        ValueError: it is no directory.
    """

    def __init__(self, path: str) -> None:
        try:
            self._root = Path(path).resolve(strict=True)
        except OSError as error:
            raise ValueError(f"adapters_dir {path!r}: {error.strerror}") from error
        if not self._root.is_dir():
            raise ValueError(f"adapters_dir {path!r} is no directory")

    def directory(self, path: str) -> Path:
        """The adapter's directory, resolved; ``path`` is relative to the root, or beneath it.

        Raises:
            AdapterRefused: it lies elsewhere, or there is none. Which of both is not told: what
                exists outside the root is nobody's business.
        """
        found = self._beneath(self._root / path) if 0 < len(path) <= _LONGEST_PATH else None
        if found is None or found == self._root or not found.is_dir():
            raise AdapterRefused(
                f"path {path[:200]!r} is no directory beneath the adapter root", field="path"
            )
        return found

    def file(self, directory: Path, name: str) -> Path:
        """A file of an adapter's directory, resolved.

        Raises:
            AdapterRefused: it is missing, or a link leads out of the root.
        """
        found = self._beneath(directory / name)
        if found is None or not found.is_file():
            raise AdapterRefused(
                f"the adapter has no {name} beneath the adapter root{_hint(directory)}",
                field="path",
            )
        return found

    def _beneath(self, path: Path) -> Path | None:
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            # Missing, a loop of links, or a zero byte in the name.
            return None
        return found if found.is_relative_to(self._root) else None


def _hint(directory: Path) -> str:
    """Why there may be no weights to read."""
    if (directory / "adapter_model.bin").exists():
        return (
            "; adapter_model.bin is a pickle, which is never loaded: save it with "
            "save_pretrained(..., safe_serialization=True)"
        )
    return ""
