"""Parquet objects: how rows are flushed to them, and which rows their tombstones end."""
