"""Versions of keys: records, how they are read, and what each command does to them."""
