"""Sockets, directories, memory and files: what the daemon needs of this machine."""

import grp
import os
import pwd
import resource
import socket
import stat
import tempfile
from pathlib import Path

import psutil

from evac.admin import read_status
from evac.errors import EvacError
from evacd.check import cgroup
from evacd.check.findings import Finding, Verdict
from evacd.config import MemoryConfig, PeerConfig, PolicyConfig, SocketConfig, StateConfig

# sockaddr_un holds 108 bytes, the final NUL included.
_SOCKET_PATH_LIMIT = 107
# A rank costs a slot's fd three times, a socket and a pidfd.
_FILES_PER_RANK = 5
_FILES_WANTED = 4096
# Charged to a control group beside the slots: what the kernel keeps of their pages, 4.4 MiB for each GiB in
# pages of 4 KiB, and evacd itself. As the chart has it, and as its tests hold a real one to.
_KERNEL_SHARE = 5 / 1024
_ITSELF = 128 * 1024 * 1024
# Documentation/admin-guide/mm/transhuge.rst of the kernel, "Hugepages in tmpfs/shmem"; read 2026-11.
SHMEM_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")


def check_sockets(config: SocketConfig) -> Finding:
    """Both sockets can be made, where nobody else can replace them."""
    name = "sockets"
    for path in (config.workload, config.admin):
        if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
            detail = f"{path}: longer than the kernel's {_SOCKET_PATH_LIMIT} bytes"
            return Finding(name, Verdict.FAIL, detail, "choose a shorter path")
        if wrong := _unusable(path.parent):
            return Finding(name, Verdict.FAIL, *wrong)
    if config.workload == config.admin:
        detail = f"{config.admin} is the workloads' socket, too"
        return Finding(name, Verdict.FAIL, detail, "give each its own path")
    if config.admin_group and not _has_group(config.admin_group):
        detail = f"there is no group {config.admin_group!r}"
        return Finding(name, Verdict.FAIL, detail, f"groupadd {config.admin_group}")
    return Finding(name, Verdict.OK, f"{config.workload}, {config.admin}")


def check_daemon(config: SocketConfig) -> Finding:
    """Whether a daemon answers already: for information."""
    name = "daemon"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(config.workload))
        except FileNotFoundError:
            return Finding(name, Verdict.OK, "none is running")
        except ConnectionRefusedError:
            return Finding(name, Verdict.OK, "none is running; a dead one left its socket")
        except OSError as error:
            detail = f"{config.workload}: {error.strerror or error}"
            return Finding(name, Verdict.WARN, detail, "is that path something else's?")
    return Finding(name, Verdict.OK, f"one is listening on {config.workload}")


def check_policy(config: PolicyConfig) -> Finding:
    """The users that are named exist, and what is said of them counts."""
    listed = {user.name: user for user in config.users}
    missing = [user for user in (*config.allow_users, *listed) if not _has_user(user)]
    if missing:
        detail = f"no such user: {', '.join(dict.fromkeys(missing))}"
        cure = "correct policy.allow_users or policy.users"
        return Finding("policy", Verdict.WARN, detail, cure)
    outside = [name for name in listed if config.allow_users and name not in config.allow_users]
    if outside:
        detail = f"limits for who may not register: {', '.join(outside)}"
        return Finding("policy", Verdict.WARN, detail, "name them in policy.allow_users, too")
    ceiling = config.max_priority
    above = [
        user.name
        for user in config.users
        if user.max_priority is not None and user.max_priority > ceiling
    ]
    if above:
        detail = f"nobody may ask for more than {ceiling}, but {', '.join(above)} should"
        return Finding("policy", Verdict.WARN, detail, "raise policy.max_priority")
    who = ", ".join(config.allow_users) or "whoever can open the socket"
    return Finding("policy", Verdict.OK, f"may register: {who}")


def check_state(config: StateConfig) -> Finding:
    """The journal's directory is there, or can be made, and takes files."""
    name = "state"
    try:
        config.dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=config.dir) as probe:
            probe.write(b"evac")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        detail = f"{config.dir}: {error.strerror or error}"
        return Finding(name, Verdict.FAIL, detail, "make it writable, or give --state-dir")
    return Finding(name, Verdict.OK, str(config.dir))


def check_memory(config: MemoryConfig, peer: PeerConfig, sockets: SocketConfig) -> Finding:
    """The budgets fit in what is available now, and in what our control group allows.

    What a daemon that runs already has of them is available to it.
    """
    available = psutil.virtual_memory().available + held(sockets.workload)
    allowed = cgroup.limit(Path("/proc/self/cgroup").read_text())
    budget = config.budget.resolve(available)
    if peer.listen:
        budget += peer.budget.resolve(available)
    return judge_memory(budget, available, allowed)


def held(path: Path) -> int:
    """Bytes of slots, and of other nodes', that a daemon holds; 0 where none answers."""
    try:
        status = read_status(path, timeout=2.0)
    except (EvacError, OSError):
        return 0
    parts = (status.get("memory"), status.get("peer"))
    return sum(int(part.get("used", 0)) for part in parts if isinstance(part, dict))


def check_spill(folder: Path) -> Finding:
    """A file without a name can be made there, as evacd makes one for each copy."""
    name = "spill"
    try:
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        cure = "make it a folder on a local disk (ext4, xfs), or give another --memory-spill"
        return Finding(name, Verdict.FAIL, f"{folder}: {error.strerror}", cure)
    try:
        room = os.fstatvfs(fd)
    finally:
        os.close(fd)
    return Finding(name, Verdict.OK, f"{folder}: {_gib(room.f_bavail * room.f_frsize)} free")


def judge_memory(budget: int, available: int, allowed: int | None) -> Finding:
    """All in bytes; *allowed* is None where no control group limits us."""
    name = "memory"
    detail = f"budget {_gib(budget)} of {_gib(available)} available"
    if budget >= available:
        return Finding(name, Verdict.FAIL, detail, "lower --memory-budget: this much is not there")
    charged = int(budget * (1 + _KERNEL_SHARE)) + _ITSELF
    if allowed is not None and charged > allowed:
        detail += f", but the control group allows {_gib(allowed)}, and {_gib(charged)} are charged"
        cure = "raise its limit or lower --memory-budget: the kernel would kill evacd first"
        return Finding(name, Verdict.FAIL, detail, cure)
    if budget > 0.9 * available:
        cure = "lower --memory-budget: workloads need the rest"
        return Finding(name, Verdict.WARN, detail, cure)
    return Finding(name, Verdict.OK, detail)


def check_huge_pages(setting: Path = SHMEM_ENABLED) -> Finding:
    """Slots get pages of 2 MiB where they ask for them: a disk takes those for a fourth of the CPU."""
    name = "huge pages"
    try:
        words = setting.read_text().split()
    except OSError:
        return Finding(name, Verdict.OK, "this kernel has none for shared memory")
    chosen = next((word.strip("[]") for word in words if word.startswith("[")), "")
    detail = f"shmem_enabled is {chosen or 'unknown'}"
    if chosen in ("never", "deny"):
        detail += ", so a flush to a disk costs some four times the CPU"
        return Finding(name, Verdict.WARN, detail, f"echo advise > {setting}")
    return Finding(name, Verdict.OK, detail)


def check_files() -> Finding:
    """Enough open files are allowed for the slots of many ranks."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding("open files", Verdict.OK, "no limit")
    detail = f"{soft} allowed, enough for about {soft // _FILES_PER_RANK} ranks"
    if soft < _FILES_WANTED:
        cure = "LimitNOFILE=65536 in the unit, or ulimit -n 65536"
        return Finding("open files", Verdict.WARN, detail, cure)
    return Finding("open files", Verdict.OK, detail)


def _unusable(directory: Path) -> tuple[str, str] | None:
    """What is wrong with a socket's directory, and its cure."""
    nearest = next(p for p in (directory, *directory.parents) if os.path.lexists(p))
    if not nearest.is_dir():
        return f"{nearest}: not a directory", "choose another path for the sockets"
    if not os.access(nearest, os.W_OK | os.X_OK):
        lacks = "is not writable" if nearest == directory else f"cannot be made in {nearest}"
        return f"{directory}: {lacks}", "run as root, or choose another path for the sockets"
    mode = nearest.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return (
            f"{nearest}: anybody may write there, and so replace the sockets",
            f"chmod o-w {nearest}, or choose another path for the sockets",
        )
    return None


def _has_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _has_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        # A uid needs no name: a container's users have none here.
        return name.isascii() and name.isdigit()
    return True


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
