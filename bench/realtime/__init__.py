"""Realtime sessions under measurement: callers that speak at a microphone's pace, and what they
hear. See ``python -m bench.realtime_load --help`` and ``make bars-realtime``."""
