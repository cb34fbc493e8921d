"""Changes as files on object storage: dispatchers, spool, files close to a size, a drain before each DDL."""
