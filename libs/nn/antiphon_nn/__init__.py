"""Model building blocks: checkpoint readers and layers.

``gguf_file`` and ``errors`` need no torch, so that a front process can read a file's
metadata; ``checkpoint`` and ``layers`` do.
"""
