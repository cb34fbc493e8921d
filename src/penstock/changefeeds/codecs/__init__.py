"""The formats of data files: how changes become bytes, vectorised."""
