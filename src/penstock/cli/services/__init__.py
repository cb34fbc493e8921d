"""The commands that run a service until they are stopped."""
