"""The runner of accelerators: one decode path, its recorded graphs and the memory they take.

Everything here also runs on the host, where a graph records nothing and a stream does not
exist: tests prove the same code there.
"""
