"""Compute kernels: each operation is a package with its reference beside the fast path.

``<op>/__init__.py`` holds the public function, which picks the native CPU kernel where it
applies and the plain torch reference elsewhere; ``<op>/reference.py`` is the definition of
the operation; ``<op>/cases.py`` lists the shapes that tests and benchmarks share. The C++
sources lie under ``cpu/src`` and are compiled on first use.
"""

from __future__ import annotations

from antiphon_kernels.runtime import (
    fallbacks,
    implementations,
    products,
    set_products,
    set_threads,
    threads,
)

__all__ = [
    "fallbacks",
    "implementations",
    "products",
    "set_products",
    "set_threads",
    "threads",
]
