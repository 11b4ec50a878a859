"""Why a unit is given up, in numbers that a person can check. Pure."""

from evac.human import rate as rate_text
from evac.human import size


def too_late(*, seconds: float, left: float, nbytes: int | None, rate: float) -> str:
    """``needs 41.2 s for 4.12 GB at 100 MB/s, 28.0 s are left``.

    Args:
        seconds: What it takes at least, its commit included.
        left: Until the end of the window, less the reserve and what goes first; may be negative.
        nbytes: What is to be written; None for a callback workload's turn.
        rate: Of the lane, bytes per second.
    """
    work = "its own flush" if nbytes is None else f"{size(nbytes)} at {rate_text(rate)}"
    left = max(left, 0.0)
    # A millisecond too much must not read "needs 28.0 s, 28.0 s are left".
    for digits in (1, 2, 3, 6):
        needed, available = f"{seconds:.{digits}f}", f"{left:.{digits}f}"
        if needed != available:
            break
    return f"needs {needed} s for {work}, {available} s are left"
