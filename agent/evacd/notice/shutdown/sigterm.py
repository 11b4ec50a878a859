"""SIGTERM alone is no notice: a restart of the daemon looks the same. What makes it one. Pure.

Sources: shutdown(8) (/run/nologin five minutes before a scheduled shutdown),
org.freedesktop.login1(5) (`PreparingForShutdown`), org.freedesktop.systemd1(5) (`SystemState`),
systemd's src/login/logind-dbus.c (the fields of /run/systemd/shutdown/scheduled), kubelet's
graceful node shutdown ("node is shutting down"). Read 2026-10.
"""

from dataclasses import dataclass

from evacd.facts import Confidence, Notice

# A shutdown planned for later does not explain a SIGTERM now: somebody restarts the daemon.
SOON_SECONDS = 60.0
# What `shutdown` writes as MODE; "dry-…" is only talk.
_MODES = frozenset({"poweroff", "reboot", "halt", "kexec", "soft-reboot", "exit"})


@dataclass(frozen=True)
class Signs:
    """What could be seen within the time limit; what could not be seen is as if absent.

    Attributes:
        scheduled_mode: MODE of /run/systemd/shutdown/scheduled; "" where there is no file.
        scheduled_in_seconds: From now to its USEC, negative where it is past; None if unknown.
        nologin: /run/nologin is there.
        system_state: systemd's: ``running``, ``degraded``, ``stopping``; "" where it is silent.
        preparing: logind's `PreparingForShutdown`.
        node_shutting_down: The kubelet says so of this Kubernetes node.
    """

    scheduled_mode: str = ""
    scheduled_in_seconds: float | None = None
    nologin: bool = False
    system_state: str = ""
    preparing: bool = False
    node_shutting_down: bool = False


def second_sign(signs: Signs) -> str | None:
    """What, beside SIGTERM, says that the machine goes down; None where nothing does."""
    if signs.preparing:
        return "logind prepares for shutdown"
    if signs.system_state == "stopping":
        return "systemd is stopping the system"
    if signs.node_shutting_down:
        return "the kubelet shuts the node down"
    if signs.scheduled_mode in _MODES:
        left = signs.scheduled_in_seconds
        if left is None or left <= SOON_SECONDS:
            return f"a {signs.scheduled_mode} is scheduled"
    # Logins are also off while booting and on an administrator's word. systemd knows better,
    # where it can be asked; where it cannot, the file is all there is.
    if signs.nologin and not signs.system_state:
        return "logins are disabled by /run/nologin"
    return None


def parse_scheduled(text: str) -> tuple[str, float | None]:
    """MODE and USEC of /run/systemd/shutdown/scheduled; USEC in seconds since the epoch.

    What is missing or malformed is "" and None.
    """
    fields = dict(line.strip().split("=", 1) for line in text.splitlines() if "=" in line)
    usec = fields.get("USEC", "")
    mode = fields.get("MODE", "")
    digits = usec.isascii() and usec.isdigit() and len(usec) <= 20
    return mode[:40], int(usec) / 1e6 if digits else None


def sigterm_notice(sign: str, *, now: float, budget_seconds: float = 30.0) -> Notice:
    """What a SIGTERM with a second sign means.

    Args:
        sign: From `second_sign`.
        now: Monotonic seconds.
        budget_seconds: What this machine's owner assumes from SIGTERM to SIGKILL: 30 on most
            clouds, 60 on Nebius.
    """
    return Notice(
        source="shutdown",
        kind="sigterm",
        id="shutdown:sigterm",
        confidence=Confidence.STARTED,
        deadline=now + budget_seconds,
        seen=now,
        detail=f"SIGTERM, and {sign}",
    )
