"""The command line: one module per command, `main` for the parser."""
