"""Output text to content, reasoning and tool calls; one module for each family of formats.

A family reads what its models write, and builds the structural tag that makes a model write
nothing else. Nothing here knows tokens, requests or the engine.
"""
