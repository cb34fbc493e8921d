"""The services, one module each, so that a process imports only what its service needs."""
