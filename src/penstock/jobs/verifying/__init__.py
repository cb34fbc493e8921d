"""Comparing targets with their source, and mending them."""
