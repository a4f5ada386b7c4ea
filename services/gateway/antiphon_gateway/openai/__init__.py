"""The OpenAI wire: request and response shapes, field policies and the error table."""
