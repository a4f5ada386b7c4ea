"""Becomes a command that the kernel ends when the suite dies (Linux only).

Run as a script: ``python -S child.py <parent pid> <command> [<argument> ...]``. It imports
nothing of this package, so that the detour costs milliseconds; a ``preexec_fn`` would fork a
process that runs gRPC threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Asks for the parent-death signal, then replaces this process by the command.

    It becomes a process group, so that a Ctrl-C reaches the suite only, but no session: see
    antiphon_core.ipc.child_process.
    """
    parent, *command = sys.argv[1:]
    os.setpgrp()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
