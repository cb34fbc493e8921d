"""What the consumers of table formats have in common: copies of tables, as Parquet files."""
