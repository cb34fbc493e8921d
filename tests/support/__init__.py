"""Scaffolding of the tests: worlds, doubles, faults, and programs as processes."""
