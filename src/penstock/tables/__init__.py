"""TiDB's tables on the KV store: encoding, schemas, catalog, rows."""
