"""The state of a deployment: gathered from its parts, with what holds it back and what is wrong."""
