"""The runner: it tracks all jobs, decides which iterations begin, and submits them to the scheduler."""
