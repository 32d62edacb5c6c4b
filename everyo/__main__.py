"""`python -m everyo` is the console script `everyo`."""

from everyo.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
