"""The clocks of the client; whatever reads one takes it as an argument, so tests bring their own."""

import time
from collections.abc import Callable
from typing import TypeAlias

# Seconds on CLOCK_MONOTONIC. It never leaves this machine: the wire carries durations.
Monotonic: TypeAlias = Callable[[], float]

# Seconds since the epoch. It may jump, so nothing is ever timed by it.
Wall: TypeAlias = Callable[[], float]

monotonic: Monotonic = time.monotonic  # noqa: TID251 - the one place that may
wall: Wall = time.time  # noqa: TID251 - the one place that may
