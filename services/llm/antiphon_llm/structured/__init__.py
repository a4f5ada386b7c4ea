"""Structured output: constraints compiled to grammars, and the masks that hold an output to one."""
