"""Batches of raw rows into Arrow, a column at a time: no Python object per cell."""
