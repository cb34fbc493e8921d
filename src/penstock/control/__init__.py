"""What people do with a deployment and see of it: one set of operations behind the commands and the API."""
