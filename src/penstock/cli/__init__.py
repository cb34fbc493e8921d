"""The command line: commands, services, `up`, `demo` and `doctor`."""
