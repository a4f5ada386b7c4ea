"""The text side of the llm service: asyncio, no torch."""
