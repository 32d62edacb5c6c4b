"""The command line: `everyo info`, `doctor`, `demo` and `test`."""
