"""Limits of control groups, laid out as the kernel does."""

from pathlib import Path

from evacd.check.cgroup import limit


def put(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def test_the_least_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    put(tmp_path / "system.slice" / "evacd.service" / "memory.max", "max")
    put(tmp_path / "system.slice" / "memory.max", "4096")
    put(tmp_path / "other.slice" / "memory.max", "1")

    assert limit("0::/system.slice/evacd.service\n", root=tmp_path) == 4096


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    put(tmp_path / "memory.max", "8192")

    assert limit("0::/\n", root=tmp_path) == 8192


def test_version_1_is_read_where_its_memory_controller_is(tmp_path: Path) -> None:
    put(tmp_path / "memory" / "job" / "memory.limit_in_bytes", "4096")
    put(tmp_path / "memory" / "memory.limit_in_bytes", str(2**63 - 4096))

    assert limit("4:cpu,memory:/job\n1:cpu:/job\n0::/\n", root=tmp_path) == 4096
    assert limit("4:memory:/elsewhere\n", root=tmp_path) is None


def test_no_group_is_no_limit(tmp_path: Path) -> None:
    assert limit("", root=tmp_path) is None
    assert limit("not of the form\n", root=tmp_path) is None
    limit(Path("/proc/self/cgroup").read_text())  # whatever this machine has
