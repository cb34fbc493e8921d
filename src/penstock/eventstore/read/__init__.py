"""Reading a table of the event store: ranges of changes, snapshots, rows over Flight."""
