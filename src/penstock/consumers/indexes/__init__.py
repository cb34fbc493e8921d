"""What search indexes share: a Lance dataset that knows its watermark, how rows get there, and its upkeep."""
