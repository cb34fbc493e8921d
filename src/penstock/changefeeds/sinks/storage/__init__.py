"""The storage sink brings events into files: shards, encoding, spool, buffers, writing."""
