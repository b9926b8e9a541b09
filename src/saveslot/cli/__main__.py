"""`python -m saveslot.cli` runs the command, too."""

import sys

from saveslot.cli import main

sys.exit(main())
