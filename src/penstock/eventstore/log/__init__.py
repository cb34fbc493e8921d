"""The write-ahead log: rows that are durable and not flushed yet."""
