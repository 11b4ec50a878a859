"""Which file system a path lies on, and whether it goes with the machine.

Source: proc_pid_mountinfo(5), read 2026-11-29. The model names of disks that are local to
the host are those that the clouds' own NVMe controllers report.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

_ESCAPED = re.compile(r"\\([0-7]{3})")
_IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs", "rootfs"}
_LAYERED = {"overlay", "aufs", "squashfs"}
# In a container "/" is a layer, but these files come from the node's own disk; so do a pod's
# emptyDir volumes.
_BOOT_DISK = (PurePath("/"), PurePath("/etc/hosts"), PurePath("/etc/hostname"))
# Model -> whose. Network disks report other names (GCP's are "nvme_card-pd").
_LOCAL_DISKS = {
    "nvme_card": "a GCP Local SSD",
    "Amazon EC2 NVMe Instance Storage": "an EC2 instance store",
    "Microsoft NVMe Direct Disk": "an Azure local disk",
    "Microsoft NVMe Direct Disk v2": "an Azure local disk",
}


@dataclass(frozen=True)
class Mount:
    """One mounted file system.

    Attributes:
        point: Where it is mounted.
        device: ``major:minor``.
        kind: ``ext4``, ``nfs4``.
        source: ``/dev/vda1``, ``server:/export``.
    """

    point: PurePath
    device: str
    kind: str
    source: str


def parse(text: str) -> Sequence[Mount]:
    """Read ``/proc/self/mountinfo``; lines that are not of its form are left out."""
    mounts: list[Mount] = []
    for line in text.splitlines():
        head, separator, tail = line.partition(" - ")
        first, last = head.split(" "), tail.split(" ")
        if separator and len(first) >= 6 and len(last) >= 2:
            mounts.append(Mount(PurePath(_plain(first[4])), first[2], last[0], _plain(last[1])))
    return mounts


def holding(mounts: Sequence[Mount], path: PurePath) -> Mount | None:
    """The mount that *path* (absolute, links resolved) lies on; the last of equals covers."""
    above = [one for one in mounts if path == one.point or one.point in path.parents]
    return max(reversed(above), key=lambda one: len(one.point.parts), default=None)


def ephemeral(mounts: Sequence[Mount], path: PurePath) -> str:
    """Why what is written at *path* goes with the machine; "" where nothing says so."""
    here = holding(mounts, path)
    if here is None:
        return ""
    if here.kind in _IN_MEMORY:
        return f"it lies in memory ({here.kind} on {here.point})"
    if here.kind in _LAYERED:
        return f"it lies in a container's own layer ({here.kind} on {here.point})"
    for anchor in _BOOT_DISK:
        boot = holding(mounts, anchor)
        if boot is not None and (here.device == boot.device or _same_disk(here, boot)):
            return f"it lies on the boot disk ({here.source} on {here.point})"
    return ""


def local_disk(device: str, *, sys: Path = Path("/sys")) -> str:
    """Whose host-local disk lies below *device* (``major:minor``); "" where none is known.

    Looks through partitions, RAID and device mapper.
    """
    pending = [(sys / "dev" / "block" / device).resolve()]
    while pending:
        block = pending.pop()
        # A partition's folder lies in its disk's.
        disk = block.parent if (block / "partition").exists() else block
        pending += [below.resolve() for below in (disk / "slaves").glob("*")]
        try:
            model = (disk / "device" / "model").read_text().strip()
        except OSError:
            continue
        if model in _LOCAL_DISKS:
            return _LOCAL_DISKS[model]
    return ""


def _same_disk(one: Mount, other: Mount) -> bool:
    # btrfs subvolumes and bind mounts: another number, the same source.
    return one.source.startswith("/dev/") and one.source == other.source


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
