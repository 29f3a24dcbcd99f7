"""Measurements: one record, many in columns, in SQLite, in CSV."""
