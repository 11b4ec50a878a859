"""The demo is what people see first: it is run as they run it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_proves_that_a_run_resumes_bit_for_bit() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "integration.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "PROVEN: 80 of 80 losses" in shown.stdout
    for words in ("flush finished", "cordon closed", "departure told", "report written"):
        assert words in shown.stdout
