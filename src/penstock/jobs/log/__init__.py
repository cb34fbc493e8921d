"""The job log: people register jobs in it, and runners change their rows by compare-and-set."""
