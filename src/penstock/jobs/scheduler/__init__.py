"""The scheduler: a fair queue of iterations, the workers that run them, and their retries."""
