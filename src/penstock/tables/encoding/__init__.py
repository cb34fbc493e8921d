"""Arrow batches into rows, a column at a time, for bulk inserts."""
