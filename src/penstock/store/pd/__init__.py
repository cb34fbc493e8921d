"""The placement driver: timestamps, ids, stores, where regions are, safe points, plain keys."""
