"""TiKV as a source: regions, their change streams, and resolved timestamps."""
