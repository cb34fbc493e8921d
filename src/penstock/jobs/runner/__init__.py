"""The runner: the board of all jobs, the rules of their triggers, and what becomes of their freshness."""
