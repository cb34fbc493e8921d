"""Doubles and fault tools, for our tests and for our users'."""
