"""`python -m calc`: the command line."""

import sys

from calc.cli import main

sys.exit(main())
