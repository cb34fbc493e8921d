"""Doubles for users of the library: a clock, a store, a retriever, a directory and a connection that breaks."""
