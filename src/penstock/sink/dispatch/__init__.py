"""Dispatchers, their barrier, and the changefeed that drives them."""
