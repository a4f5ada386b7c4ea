"""Rates and daily amounts of keys and tenants, and the account of what was used."""
