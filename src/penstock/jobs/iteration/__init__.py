"""Iterations: one scan is fanned out to the consumers of a table's jobs, and each job ends on its own."""
