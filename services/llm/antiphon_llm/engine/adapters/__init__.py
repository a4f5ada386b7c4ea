"""Adapters that are loaded while the engine serves: files, names, slots."""
