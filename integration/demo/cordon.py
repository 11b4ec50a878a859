"""The demo's cordon: any program can be one. Reads the order, notes that the node is closed."""

import json
import sys
from pathlib import Path


def main() -> None:
    """``cordon.py FILE``: write what was ordered to FILE."""
    Path(sys.argv[1]).write_text(json.dumps(json.load(sys.stdin), indent=1))


if __name__ == "__main__":
    main()
