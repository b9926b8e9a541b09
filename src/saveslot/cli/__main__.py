"""`python -m saveslot.cli` is the command, too."""

import sys

from saveslot.cli import main

sys.exit(main())
