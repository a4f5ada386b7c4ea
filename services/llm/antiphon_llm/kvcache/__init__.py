"""Paged KV memory: field declarations, the pool they carve, entries and block tables."""
