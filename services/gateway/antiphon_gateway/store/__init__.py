"""What outlives the process: SQLite or PostgreSQL for rows, a folder for contents.

The modules here import SQLAlchemy at their top; a gateway without a store never imports them.
"""
