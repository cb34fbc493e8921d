"""Consumers of table formats: copies of tables as Parquet files."""
