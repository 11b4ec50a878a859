"""`python -m evac`, for where the script is not on the path."""

import sys

from evac.cli import main

sys.exit(main())
