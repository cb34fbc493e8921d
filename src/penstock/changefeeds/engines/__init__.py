"""How a sink's rows are read, encoded and written: in this process, or by Spark tasks."""
