"""Pure-ASGI middleware: no task, no queue, no copy per chunk."""
