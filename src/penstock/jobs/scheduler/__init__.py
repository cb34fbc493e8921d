"""The scheduler: which iteration runs next, again, or not any more; and who has used how much."""
