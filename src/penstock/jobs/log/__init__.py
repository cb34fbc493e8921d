"""The job log: what people register and runners write, by compare-and-set."""
