"""``python -m antiphon_kernels.cpu``: builds the native kernels now and says what runs."""

from __future__ import annotations

from antiphon_kernels.cpu.library import native, unavailable_reason


def main() -> None:
    """Prints one line; a machine without a compiler is no failure, it runs the torch kernels."""
    kernels = native()
    print(kernels.isa if kernels else f"torch kernels ({unavailable_reason()})")


if __name__ == "__main__":
    main()
