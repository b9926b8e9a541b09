"""`python -m saveslot` runs the command `saveslot`."""

import sys

from saveslot.cli import main

if __name__ == "__main__":
    sys.exit(main())
