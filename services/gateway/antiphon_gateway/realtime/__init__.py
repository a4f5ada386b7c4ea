"""Realtime voice sessions over a WebSocket.

``session`` is a deterministic reducer without I/O or clock; ``connection`` feeds it and carries
out its commands; ``response`` runs one reply; ``endpoint`` accepts sockets.
"""
