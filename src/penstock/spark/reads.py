"""What a kind of read must offer to the data source."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


class TableRead(Protocol):
    """One read of one table, from the moment it is asked for to its plan. Must be picklable.

    Spark makes it in one Python process, asks it for the schema there, and sends it pickled to another one to
    be planned. So an implementation fixes its timestamp in `schema` and keeps it: schema and rows are then of
    the same moment, and a data frame that is evaluated twice gives the same rows twice. Where the caller gave
    a schema, `schema` is not asked.
    """

    def schema(self) -> "StructType":
        """Columns and types of the rows; raises a PenstockError of one line."""

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """A picklable reader whose batches have exactly the Arrow schema of the declared columns."""
