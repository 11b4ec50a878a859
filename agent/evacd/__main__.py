"""`python -m evacd`, for where the script is not on the path."""

import sys

from evacd.cli import main

sys.exit(main())
