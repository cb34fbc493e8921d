"""Decodes batches of raw rows into Arrow, a column at a time, without a Python object per cell."""
