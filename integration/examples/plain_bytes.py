"""JAX, numpy or anything else that is bytes: staged with one line, back with another. Needs evacd.

python -m integration.examples.plain_bytes 60
"""

import sys

import numpy as np

import evac


def train(steps: int, job: str = "example-bytes") -> tuple[int, np.ndarray]:
    """Train to *steps*; the first step of this start, and what came of it."""
    client = evac.connect(job)
    client.wait_connected(10.0)
    weights, first = np.zeros(1000), 1
    if (kept := client.newest()) is not None:  # from memory, or from the daemon's store
        weights, first = np.frombuffer(kept.data).copy(), kept.step + 1
    for step in range(first, steps + 1):
        weights += np.random.default_rng(step).standard_normal(1000)
        client.stage(weights, step)  # with JAX: client.stage([np.asarray(x) for x in leaves], step)
    client.close()
    return first, weights


if __name__ == "__main__":
    print(train(int(sys.argv[1])))
