"""A capture: the process that owns tables, writes their changes and serves what is not flushed."""
