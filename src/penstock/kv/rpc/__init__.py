"""Requests to stores: connection arrays, batched streams, unary calls."""
