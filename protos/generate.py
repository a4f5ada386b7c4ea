"""Regenerates the committed stubs under protos/gen; run it through `make proto`.

`python protos/generate.py --check` generates into a temporary directory instead and fails
when the committed stubs differ.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
GENERATED = PROTOS / "gen"
THIRD_PARTY = PROTOS / "third_party"
SOURCES = (PROTOS / "antiphon", THIRD_PARTY / "xds")
"""What stubs are made of; google.rpc has a package of its own."""


def generate(output: Path) -> None:
    """Writes _pb2.py, _pb2.pyi and _pb2_grpc.py of every proto of ours beneath ``output``."""
    sources = sorted(str(path) for root in SOURCES for path in root.rglob("*.proto"))
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={THIRD_PARTY}",
        f"--proto_path={PROTOS}",
        f"--proto_path={well_known}",
        f"--python_out={output}",
        f"--pyi_out={output}",
        f"--grpc_python_out={output}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")
    for root in SOURCES:
        package = output / root.name
        for directory in [package, *package.rglob("*")]:
            if directory.is_dir():
                (directory / "__init__.py").touch()


def differences(left: Path, right: Path) -> list[str]:
    """Relative names of generated files that are not byte-equal in both trees."""

    def names(root: Path) -> set[Path]:
        return {
            path.relative_to(root)
            for source in SOURCES
            for path in (root / source.name).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }

    different = names(left) ^ names(right)
    for name in names(left) & names(right):
        if not filecmp.cmp(left / name, right / name, shallow=False):
            different.add(name)
    return sorted(str(name) for name in different)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of write")
    if not parser.parse_args().check:
        generate(GENERATED)
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        stale = differences(GENERATED, Path(scratch))
    if stale:
        sys.exit("stale generated stubs, run `make proto`: " + ", ".join(stale))


if __name__ == "__main__":
    main()
