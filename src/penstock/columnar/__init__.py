"""Arrow in bounded memory: spills, hashes, lines of text and kernels on binary columns."""
