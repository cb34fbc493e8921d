"""Merging, garbage collection and first snapshots, beside the writes."""
