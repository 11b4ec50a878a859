"""What is written where: the files of the folder systemd/, rendered for one machine. Pure.

The folder lies beside this file by a link, so that an installed wheel has it, too.
"""

import re
from dataclasses import dataclass
from importlib import resources

from evacd.install.sample import sample

UNIT = "evacd.service"
# As the unit has it for whoever copies it by hand; README.md tells to install there.
_STARTED = "ExecStart=/opt/evac/bin/python "
_SINCE = re.compile(r"^#since (\d+): ", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """One file to be.

    Attributes:
        path: Absolute, on the machine that is installed.
        mode: Of the file.
    """

    path: str
    text: str
    mode: int = 0o644


def pages(python: str, *, systemd: int) -> tuple[Page, ...]:
    """All files of the service.

    Args:
        python: Path of the interpreter that has evacd.
        systemd: Its version on the machine: an older one warns of what it does not know.
    """
    return (
        # URLs in it may hold a password.
        Page("/etc/evac/evac.toml", sample(), mode=0o640),
        Page(f"/etc/systemd/system/{UNIT}", unit(_text(UNIT), python, systemd=systemd)),
        Page("/etc/sysusers.d/evac.conf", _text("sysusers.conf")),
        Page("/etc/tmpfiles.d/evac.conf", _text("tmpfiles.conf")),
        # Behind 99-kubelet.conf and unattended-upgrades-logind-maxdelay.conf: the last one wins.
        Page("/etc/systemd/logind.conf.d/zz-evac.conf", _text("logind.conf")),
    )


def unit(text: str, python: str, *, systemd: int) -> str:
    """The unit for this machine.

    Args:
        text: Of systemd/evacd.service.
    """
    known = _SINCE.sub(lambda found: "" if systemd >= int(found[1]) else found[0], text)
    return known.replace(_STARTED, f"ExecStart={_word(python)} ")


def _word(path: str) -> str:
    """*path* as a word of ExecStart: systemd.service(5), "Command lines"."""
    for special, instead in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        path = path.replace(special, instead)
    return f'"{path}"' if re.search(r"[\s'\"\\;]", path) else path


def _text(name: str) -> str:
    return (resources.files("evacd.install") / "files" / name).read_text()
