"""postgres: a table of PostgreSQL that follows its source."""

from penstock.consumers.postgres.consumer import Postgres, PostgresOptions

__all__ = ["Postgres", "PostgresOptions"]
