"""Whisper checkpoints in the transformers layout, run by torch over batches of excerpts."""
