"""Comparing the directory of a changefeed with the tables that it was made of."""
