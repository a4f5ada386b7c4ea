"""Versions of the schema, the same for SQLite and PostgreSQL."""
