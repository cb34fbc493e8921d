"""Iterations: one scan fanned out to consumers, each of which ends on its own."""
