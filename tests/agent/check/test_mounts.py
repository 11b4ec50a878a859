"""Where a path lies, read from mountinfo as machines of several kinds show it."""

from pathlib import Path, PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evacd.check.mounts import ephemeral, holding, local_disk, parse

VM = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
30 27 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=24684092k
40 27 254:16 / /mnt/data rw,relatime - xfs /dev/vdb rw
41 27 0:50 / /mnt/nfs rw,relatime shared:9 master:1 - nfs4 server:/export rw
42 27 254:1 /srv /mnt/bound rw,relatime - ext4 /dev/vda1 rw
43 40 0:51 / /mnt/data/fast\\040disk rw - tmpfs none rw
this line is not of the form
"""
CONTAINER = """\
500 400 0:60 / / rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b
501 500 254:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 /dev/vda1 rw
502 500 254:1 /var/lib/kubelet/pods/1/volumes/empty /cache rw - ext4 /dev/vda1 rw
503 500 254:16 / /data rw - ext4 /dev/vdb rw
504 500 0:61 / /shared rw - fuse.gcsfuse bucket rw
"""
BTRFS = """\
27 1 0:30 /@ / rw - btrfs /dev/sda2 rw,subvol=/@
28 27 0:31 /@home /home rw - btrfs /dev/sda2 rw,subvol=/@home
"""


@pytest.mark.parametrize(
    ("machine", "path", "why"),
    [
        (VM, "/var/checkpoints", "the boot disk (/dev/vda1 on /)"),
        (VM, "/mnt/bound/x", "the boot disk"),
        (VM, "/dev/shm/x", "in memory"),
        (VM, "/mnt/data/fast disk/x", "in memory"),
        (VM, "/mnt/data/fast", ""),
        (VM, "/mnt/data", ""),
        (VM, "/mnt/nfs/a/b", ""),
        (CONTAINER, "/anything", "a container's own layer"),
        (CONTAINER, "/cache/x", "the boot disk"),
        (CONTAINER, "/data/x", ""),
        (CONTAINER, "/shared", ""),
        (BTRFS, "/home/me", "the boot disk"),
    ],
)
def test_what_goes_with_the_machine_is_told_from_what_stays(
    machine: str, path: str, why: str
) -> None:
    found = ephemeral(parse(machine), PurePath(path))

    assert why in found
    assert bool(found) is bool(why)


@given(st.text(max_size=200), st.text(alphabet="/a.", max_size=10))
def test_no_text_breaks_the_parser(text: str, path: str) -> None:
    for mount in parse(text):
        assert mount.device or not mount.device
    holding(parse(text), PurePath("/" + path))


def test_this_machine_has_a_root() -> None:
    mounts = parse(Path("/proc/self/mountinfo").read_text())

    assert holding(mounts, PurePath("/no/such/path")) is not None


def test_the_later_of_two_mounts_on_one_point_counts() -> None:
    mounts = parse("1 0 8:1 / / rw - ext4 /dev/a rw\n2 0 8:2 / / rw - ext4 /dev/b rw\n")

    mount = holding(mounts, PurePath("/x"))

    assert mount is not None
    assert mount.device == "8:2"


def test_a_local_disk_is_found_below_a_partition_and_a_raid(tmp_path: Path) -> None:
    disk = tmp_path / "devices" / "nvme0n1"
    (disk / "device").mkdir(parents=True)
    (disk / "device" / "model").write_text("nvme_card   \n")
    part = disk / "nvme0n1p1"
    part.mkdir()
    (part / "partition").write_text("1\n")
    raid = tmp_path / "devices" / "md0"
    (raid / "slaves").mkdir(parents=True)
    (raid / "slaves" / "nvme0n1p1").symlink_to(part)
    network = tmp_path / "devices" / "nvme1n1"
    (network / "device").mkdir(parents=True)
    (network / "device" / "model").write_text("nvme_card-pd\n")
    numbers = tmp_path / "dev" / "block"
    numbers.mkdir(parents=True)
    for number, folder in (("259:0", disk), ("259:1", part), ("9:0", raid), ("259:2", network)):
        (numbers / number).symlink_to(folder)

    for number in ("259:0", "259:1", "9:0"):
        assert local_disk(number, sys=tmp_path) == "a GCP Local SSD"
    assert local_disk("259:2", sys=tmp_path) == ""
    assert local_disk("0:0", sys=tmp_path) == ""
