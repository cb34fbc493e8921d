"""Change data capture and change propagation in Python, on Spark."""

__version__ = "0.1.0"
