"""The REST endpoints, each a bare ASGI application; ``table`` lists them."""
