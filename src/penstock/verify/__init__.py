"""Two sets of rows compared by their hashes, in memory that does not grow with them."""
