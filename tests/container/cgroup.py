"""A cgroup with a memory limit, as a pod has one; v1 and v2."""

import os
import signal
import uuid
from contextlib import suppress
from pathlib import Path

from tests.agent.daemon.nodes import until

_ROOT = Path("/sys/fs/cgroup")


class NoLimit(Exception):
    """Nobody's memory can be limited here; says why."""


class Limited:
    """One cgroup; who is put into it is ended by the kernel where all of them need more than *nbytes*."""

    def __init__(self, nbytes: int) -> None:
        """Make it.

        Raises:
            NoLimit: This machine does not let us.
        """
        self._v1 = (_ROOT / "memory/memory.limit_in_bytes").exists()
        self.folder = _ROOT / ("memory" if self._v1 else "") / f"evac-tests-{uuid.uuid4().hex[:8]}"
        try:
            if not self._v1 and "memory" not in (_ROOT / "cgroup.subtree_control").read_text():
                (_ROOT / "cgroup.subtree_control").write_text("+memory")
            self.folder.mkdir()
        except OSError as error:
            raise NoLimit(f"{error.filename}: {error.strerror}") from error
        try:
            limit = "memory.limit_in_bytes" if self._v1 else "memory.max"
            (self.folder / limit).write_text(str(nbytes))
            if (swap := self.folder / "memory.swap.max").exists():
                swap.write_text("0")
        except OSError as error:
            self.folder.rmdir()
            raise NoLimit(f"{limit}: {error.strerror}") from error

    @property
    def prefix(self) -> list[str]:
        """What a command begins with to run in it."""
        procs = self.folder / "cgroup.procs"
        return ["sh", "-c", f'echo $$ > {procs} && exec "$@"', "sh"]

    @property
    def killed(self) -> int:
        """How many the kernel has ended for want of memory."""
        name = "memory.oom_control" if self._v1 else "memory.events"
        return self._figure(name, "oom_kill")

    @property
    def slots(self) -> int:
        """Bytes of shared memory that are charged to it."""
        return self._figure("memory.stat", "shmem")

    @property
    def unreclaimable(self) -> int:
        """Bytes that are charged to it now, and that it gives back to nobody."""
        total = self.folder / ("memory.usage_in_bytes" if self._v1 else "memory.current")
        files = (self._figure("memory.stat", each) for each in ("inactive_file", "active_file"))
        return int(total.read_text()) - sum(files)

    @property
    def kernel(self) -> Path:
        """Tells the bytes that the kernel itself has for it: by themselves, or in a line of that name."""
        return self.folder / ("memory.kmem.usage_in_bytes" if self._v1 else "memory.stat")

    def close(self) -> None:
        """Whoever is still in it is ended, and it goes."""

        def gone() -> bool:
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            with suppress(OSError):  # busy, until the last of them has ended
                self.folder.rmdir()
            return not self.folder.exists()

        until("the cgroup is empty", gone)

    def _figure(self, name: str, key: str) -> int:
        for line in (self.folder / name).read_text().splitlines():
            if line.split()[0] == key:
                return int(line.split()[1])
        return 0
