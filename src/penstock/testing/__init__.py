"""Test doubles for users of the library: a clock, a store, a retriever, a directory, a breaking proxy."""
