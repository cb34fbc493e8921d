"""The targets that jobs can keep up to date: each module is a consumer that a user could have written."""
