"""TiDB's encodings of single values, rows and keys: pure functions, byte exact."""
