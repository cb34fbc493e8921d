"""The formats of data files: how changes become bytes, and bytes changes, a batch at a time."""
