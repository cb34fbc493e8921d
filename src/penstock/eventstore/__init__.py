"""The durable heart: what was captured, kept per table until every reader is done with it."""
