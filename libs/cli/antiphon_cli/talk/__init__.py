"""Talks to a running suite over its public interfaces and times what comes back.

The commands, the tour of `antiphon demo` and the bench share these functions, so that each
figure means the same everywhere.
"""
