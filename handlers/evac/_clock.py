"""The one clock of the client; whatever reads it takes it as an argument, so tests bring their own."""

import time
from collections.abc import Callable
from typing import TypeAlias

# Seconds on CLOCK_MONOTONIC. It never leaves this machine: the wire carries durations.
Monotonic: TypeAlias = Callable[[], float]

monotonic: Monotonic = time.monotonic  # noqa: TID251 - the one place that may
