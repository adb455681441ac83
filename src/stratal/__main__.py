"""`python -m stratal`: the same as the command `stratal`."""

import sys

from stratal.cli import main

if __name__ == "__main__":
    sys.exit(main())
