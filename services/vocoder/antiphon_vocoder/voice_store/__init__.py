"""Voices that tenants make: kept in one directory each, whole or absent."""
