"""The README's installation on a VM, run as it is written, on a machine that was really booted."""

from pathlib import Path

from tests.systemd.machine import ROOT, Machine, until


def commands() -> list[str]:
    """The first block of its section, a command a line."""
    section = (ROOT / "README.md").read_text().split("## Install on a VM\n")[1]
    block = section.split("```\n")[1]
    return [line.partition("  #")[0].strip() for line in block.splitlines() if line.strip()]


def test_the_installation_of_the_readme_works_as_written(fresh: Machine) -> None:
    pip, *rest = commands()
    assert pip.startswith(
        "python3 -m venv /opt/evac && /opt/evac/bin/pip install '/path/to/this/clone["
    )
    fresh.as_if_by_pip("/opt/evac")
    fresh.do("mkdir", "-p", "/mnt/checkpoints")
    seen = []
    for command in rest:
        words = command.split()
        seen.append(Path(words[0]).name + (f" {words[1]}" if len(words) > 1 else ""))
        if words[0] == "editor":
            # That disk is meant.
            edit = (
                's|^#targets = .*|targets = ["file:///mnt/checkpoints"]|; '
                "s|^#durable_anyway = .*|durable_anyway = true|"
            )
            fresh.do("sed", "--in-place", edit, words[1])
        elif "check" in words:
            told = fresh.call("sh", "-c", command)
            # No cloud's, and its only disk is the boot disk: that is said, and all else is well.
            bad = {line.split()[1] for line in told.stdout.splitlines() if line.startswith("FAIL")}
            assert bad - {"cloud"} == {"store"}, told.stdout + told.stderr
            assert "works (wrote" in told.stdout
            assert told.returncode == 1
        else:
            fresh.do("sh", "-c", command)
    assert seen == [
        "evacd check",
        "evacd install",
        f"editor {rest[2].split()[1]}",
        "systemctl start",
    ]

    status = until("evacd answers", fresh.status)
    assert status["targets"] == ["file:///mnt/checkpoints"]
    assert fresh.show("evacd", "ActiveState") == "active"
    assert fresh.show("evacd", "UnitFileState") == "enabled"
