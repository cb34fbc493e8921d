"""From events to files: shards, encoding, spool, buffers, writing; rows stay with the engine."""
