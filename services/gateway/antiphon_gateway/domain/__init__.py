"""What the gateway says to its backends and hears from them, free of wire types.

Routes and realtime sessions use these dataclasses only; ``convert`` maps them to and from
protobuf, and ``clients`` is the only place that holds stubs.
"""
