"""What is done to mutations in the store: lock, roll back a lock, prewrite, commit, clean up."""
