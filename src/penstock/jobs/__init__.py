"""Change propagation: jobs that keep indexes, tables and other databases up to date with a table."""
