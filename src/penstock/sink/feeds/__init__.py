"""Changefeeds as they are kept, managed and run."""
