"""What jobs can feed: each module a consumer that a user could have written."""
