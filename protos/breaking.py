"""Runs `buf breaking` against the protos of main; part of `make check`.

On main itself the comparison is with the commit before, so that CI on main still compares two
states. A history without protos (the very first commits) has nothing to break.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git(*arguments: str) -> str:
    """Standard output of a git command in the repository, stripped; empty when it fails."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def baseline() -> str:
    """The commit to compare with: main, or its parent when HEAD is main."""
    head = git("rev-parse", "HEAD")
    for name in ("origin/main", "main"):
        commit = git("rev-parse", "--verify", "--quiet", name)
        if commit and commit != head:
            return commit
    return git("rev-parse", "--verify", "--quiet", "HEAD~1")


def main() -> None:
    commit = baseline()
    if not commit or not git("ls-tree", commit, "buf.yaml"):
        print("buf breaking: no earlier protos to compare with")
        return
    buf = Path(sys.executable).with_name("buf")
    command = str(buf) if buf.exists() else (shutil.which("buf") or "buf")
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(
            ["git", "archive", commit, "buf.yaml", "protos"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        subprocess.run(["tar", "-x", "-C", scratch], input=archive.stdout, check=True)
        done = subprocess.run([command, "breaking", "--against", scratch], cwd=ROOT)
    if done.returncode == 0:
        print(f"buf breaking: compatible with {commit[:12]}")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
