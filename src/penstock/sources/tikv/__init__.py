"""TiKV as a source: regions, their change streams, and what is resolved."""
