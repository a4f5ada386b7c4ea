"""Compiles the C++ kernels on first use, once per user, source version and instruction set.

The library is plain C behind ``ctypes``, so it depends on no Python or torch header and a
build takes seconds. It has threads of its own and needs no OpenMP.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
COMPILERS = ("g++", "clang++", "c++")
COMMON_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-ffp-contract=off",
    "-fno-math-errno",
)
_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2")
_AVX512_FLAGS = (*_AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
ISA_FLAGS = {
    "avx512vnni": (*_AVX512_FLAGS, "-mavx512vnni"),
    "avx512": _AVX512_FLAGS,
    "avxvnni": (*_AVX2_FLAGS, "-mavxvnni"),
    "avx2": _AVX2_FLAGS,
    "portable": (),
}
"""Instruction sets, best first, with what the compiler needs for them."""
BYTE_DOT_ISAS = ("avx512vnni", "avxvnni")
"""Those with an instruction that sums four byte products per lane."""
_AVX2_FEATURES = {"avx2", "fma", "f16c", "bmi1", "bmi2"}
_AVX512_FEATURES = _AVX2_FEATURES | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_CPU_FEATURES = {
    "avx512vnni": _AVX512_FEATURES | {"avx512_vnni"},
    "avx512": _AVX512_FEATURES,
    "avxvnni": _AVX2_FEATURES | {"avx_vnni"},
    "avx2": _AVX2_FEATURES,
    "portable": set(),
}
BUILD_TIMEOUT_SECONDS = 300


class BuildError(RuntimeError):
    """The kernels cannot be built here; the message is one line for logs and gauges."""


def supported_isas() -> list[str]:
    """Instruction sets that this processor runs, best first."""
    present = _cpu_features()
    return [isa for isa, needed in _CPU_FEATURES.items() if needed <= present]


def library_path(isa: str, cache: Path | None = None) -> Path:
    """The compiled kernels for an instruction set, built if the cache has none.

    Args:
        isa: a key of :data:`ISA_FLAGS`.
        cache: where libraries are kept; by default a directory of the user's own.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    directory = cache or _user_cache()
    target = directory / f"antiphon-kernels-{isa}-{_fingerprint(isa)}.so"
    if target.exists():
        return target
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise BuildError("no C++ compiler")
    with (directory / f"{target.stem}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _build(compiler, isa, target)
    return target


def _build(compiler: str, isa: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        flags = (*COMMON_FLAGS, *ISA_FLAGS[isa])
        units = sorted(SOURCES.glob("*.cpp"))
        objects = [Path(scratch) / f"{unit.stem}.o" for unit in units]
        with ThreadPoolExecutor(max_workers=len(units)) as pool:
            commands = [
                [compiler, *flags, "-c", str(unit), "-o", str(out)]
                for unit, out in zip(units, objects, strict=True)
            ]
            list(pool.map(_run, commands))
        library = Path(scratch) / target.name
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(library)])
        library.replace(target)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"the C++ compiler could not run: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        fault = next((line for line in lines if "error" in line), lines[-1])
        raise BuildError(f"the C++ compiler failed: {fault}")


def _fingerprint(isa: str) -> str:
    """Everything that shapes the binary but the compiler, which an image need not keep."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    flags = (*COMMON_FLAGS, *ISA_FLAGS[isa], platform.machine())
    digest.update("\0".join(flags).encode())
    return digest.hexdigest()[:16]


def _user_cache() -> Path:
    candidates = (
        Path.home() / ".cache" / "antiphon" / "kernels",
        Path(tempfile.gettempdir()) / f"antiphon-kernels-{os.getuid()}",
    )
    for directory in candidates:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        # Code is loaded from here, so nobody else may have prepared it.
        status = directory.stat()
        if status.st_uid == os.getuid() and os.access(directory, os.W_OK):
            return directory
    raise BuildError("no private cache directory for compiled kernels")


def _cpu_features() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return set(value.split())
    return set()
