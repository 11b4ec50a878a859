"""Drives `named.py`: flushes in a process of their own, told what to do before each call of the store."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.handlers.store.named import CALL
from tests.handlers.store.test_peer import running

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Driven:
    """The process."""

    process: "subprocess.Popen[str]"

    def flush(self, mark: str, nbytes: int, before: Callable[[int], str]) -> dict[str, str] | None:
        """What one ends with; *before* each call of the store, by its number, says ``go`` or ``cut``."""
        self._say(f"{mark} {nbytes}")
        number = 0
        while (said := self._heard()) == CALL:
            self._say(before(number))
            number += 1
        told: dict[str, str] | None = json.loads(said)
        return told

    def calls(self, mark: str, nbytes: int) -> int:
        """How many calls of the store a flush below *mark* has, that nothing befalls."""
        seen: list[int] = []

        def go(number: int) -> str:
            seen.append(number)
            return "go"

        assert self.flush(mark, nbytes, go) is None
        return len(seen)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def _heard(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "it has ended"
        return line


@contextmanager
def driven(
    kind: str,
    endpoint: str,
    *,
    before: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Driven]:
    """One that flushes to a store of that kind.

    Args:
        before: What starts it.
        environment: Of it, beside this process's own.
    """
    command = [*before, sys.executable, "-m", "tests.handlers.store.named", kind, endpoint]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as process:
        yield Driven(process)
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def served(kind: str, request: pytest.FixtureRequest) -> Iterator[tuple[int, dict[str, str]]]:
    """The port of a real server of that kind, and what opens it."""
    if kind == "evac":
        with running() as peer:
            yield peer.port, {}
        return
    server = request.getfixturevalue({"s3": "seaweed", "gs": "fake_gcs", "az": "azurite"}[kind])
    yield server.port, dict(getattr(server, "environment", {}))
