"""Really tries a store: write, read back, list, delete; and asks where a local one lies."""

import asyncio
import mmap
import secrets
from contextlib import suppress
from pathlib import Path

from evac.errors import ConfigError, StoreError
from evac.store import Owner, Store, is_durable, open_store
from evac.store.beneath import NotGiven
from evac.store.location import is_of_job
from evacd.check import mounts
from evacd.check.findings import Finding, Verdict
from evacd.clock import Clock
from evacd.config import without_secrets

PROBE_NBYTES = 16 * 1024 * 1024
NAME = "store"
# A workload's files become its user's, which a file system may refuse: an NFS export with root_squash does.
_SOMEBODY = Owner(uid=1, gid=1)


async def check_store(url: str, *, durable_anyway: bool, seconds: float, clock: Clock) -> Finding:
    """Try *url* for at most *seconds*."""
    shown = without_secrets(url)
    if is_of_job(url):
        about = "memory of each job's other nodes, which its workloads name; never durable"
        return Finding(NAME, Verdict.OK, f"{shown}: {about}")
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + seconds):
            rates = await _exercise(open_store(url, owner=_SOMEBODY), clock)
    except TimeoutError:
        return Finding(
            NAME,
            Verdict.FAIL,
            f"{shown}: {PROBE_NBYTES >> 20} MiB took more than {seconds:g} s",
            "a store this slow saves little within a notice; is the network or the disk healthy?",
        )
    except ConfigError as error:
        # Its own text repeats the URL, which may hold a password.
        return Finding(NAME, Verdict.FAIL, shown, f"give {error.expected}")
    except StoreError as error:
        return Finding(NAME, Verdict.FAIL, f"{shown}: {error.reason}", _cure_of(error))
    if url.startswith("file://"):
        goes = _goes_with_machine(Path(url.removeprefix("file://")))
        if goes and not durable_anyway:
            return Finding(
                NAME,
                Verdict.FAIL,
                f"{shown}: works ({rates}), but {goes}",
                "give a store that outlives this machine, or --store-is-durable if this is meant",
            )
    lasts = "" if is_durable(url) else "; a peer's memory: never durable, it goes with that node"
    return Finding(NAME, Verdict.OK, f"{shown}: {rates}{lasts}")


def _cure_of(error: StoreError) -> str:
    if isinstance(error.__cause__, NotGiven):
        return "let root give files to their users there (NFS: export it with no_root_squash), or give another --store"
    return "make it exist and writable for this user, or give another --store"


async def _exercise(store: Store, clock: Clock) -> str:
    """Returns the rates that it saw, for people.

    Raises:
        StoreError: It failed, or did not give back what it was given.
    """
    key = f".evac-check/{secrets.token_hex(8)}"
    # Page-aligned as a slot is, so that the store takes its fast way; random, so that none
    # of it is compressed away.
    with mmap.mmap(-1, PROBE_NBYTES) as memory, memoryview(memory) as data:
        data[:] = secrets.token_bytes(PROBE_NBYTES)
        try:
            began = clock.monotonic()
            await store.put(key, data)
            wrote = clock.monotonic() - began
            back, got = await _read_back(store, key)
            read = clock.monotonic() - began - wrote
            if back != data:
                raise StoreError(key, f"{got} of {PROBE_NBYTES} bytes came back, or others")
            if [one.nbytes for one in await store.list(".evac-check") if one.key == key] != [
                PROBE_NBYTES
            ]:
                raise StoreError(key, "was written, but is not listed")
        except BaseException:
            with suppress(StoreError):
                await store.delete(key)
            raise
        await store.delete(key)
        if any(one.key == key for one in await store.list(".evac-check")):
            raise StoreError(key, "was deleted, but is still listed")
    return f"wrote {_rate(wrote)}, read {_rate(read)}"


async def _read_back(store: Store, key: str) -> tuple[bytearray, int]:
    back = bytearray(PROBE_NBYTES)
    with memoryview(back) as into:
        return back, await store.read(key, 0, into)


def _rate(seconds: float) -> str:
    return f"{PROBE_NBYTES / max(seconds, 1e-9) / 1e6:.0f} MB/s"


def _goes_with_machine(path: Path) -> str:
    found = mounts.parse(Path("/proc/self/mountinfo").read_text())
    real = path.resolve()
    if why := mounts.ephemeral(found, real):
        return why
    mount = mounts.holding(found, real)
    whose = mounts.local_disk(mount.device) if mount else ""
    return f"it lies on {whose}, which goes with the machine" if whose else ""
