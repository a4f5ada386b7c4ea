"""The engine process: scheduler, batch, runner and the step loop.

Started by the front as ``python -m antiphon_llm.engine``; the two sides share the messages
module and nothing else.
"""
