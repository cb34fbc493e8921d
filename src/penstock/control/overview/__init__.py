"""The state of a deployment: gathered from its parts, explained for people."""
