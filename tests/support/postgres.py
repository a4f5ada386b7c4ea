"""A real PostgreSQL of Debian's package, on a Unix socket in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ACCOUNT = "postgres"


def binaries() -> Path | None:
    """The folder with initdb and postgres; None where the package is not installed."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    return None


class Server:
    """One server; it can be stopped and started again with its data."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        # The server refuses to run as root, as CI and containers do.
        # Another program changes the user: with subprocess's own way the child would run gRPC's
        # fork handlers, which crash it now and then.
        self._as_user = ["runuser", "-u", ACCOUNT, "--"] if os.geteuid() == 0 else []
        self._owner = ACCOUNT if self._as_user else pwd.getpwuid(os.geteuid()).pw_name

    @property
    def url(self) -> str:
        return f"postgresql://{self._owner}@/postgres?host={self._folder}"

    def create(self) -> None:
        if self._as_user:
            shutil.chown(self._folder, ACCOUNT, ACCOUNT)
        data = str(self._folder / "data")
        self._run("initdb", "-D", data, "-A", "trust", "-U", self._owner, "--no-sync")

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses= -c fsync=off -c max_connections=50"
        self._run("pg_ctl", *self._data, "-w", "-o", options, "-l", str(self._log), "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", *self._data, "-w", "-m", mode, "stop")

    @property
    def _data(self) -> tuple[str, str]:
        return ("-D", str(self._folder / "data"))

    @property
    def _log(self) -> Path:
        return self._folder / "server.log"

    def _run(self, program: str, *arguments: str) -> None:
        # Into a file: pg_ctl's server would keep a pipe open for ever.
        with (self._folder / "commands.log").open("w+") as output:
            finished = subprocess.run(
                [*self._as_user, str(self._programs / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
            )
            output.seek(0)
            server = self._log.read_text()[-2000:] if self._log.exists() else ""
            assert finished.returncode == 0, (
                f"{program} {arguments}: {finished.returncode} {output.read()}\n{server}"
            )


@contextmanager
def running_server() -> Iterator[Server]:
    """A fresh server for the block."""
    programs = binaries()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="antiphon-pg-"))
    server = Server(folder, programs)
    try:
        server.create()
        server.start()
        yield server
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)
