"""Benches are programs: what they consist of is found beside them."""

import sys
from pathlib import Path

_BENCHES = str(Path(__file__).parents[3] / "integration" / "bench")
if _BENCHES not in sys.path:
    sys.path.append(_BENCHES)
