"""The command as people run it: a process, its streams and its exit code."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

EVACD = [sys.executable, "-c", "import sys; from evacd.cli import main; sys.exit(main())"]
# Long enough for a busy machine; nothing here waits for it.
PATIENCE = 120


def evacd(
    *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("EVAC_")}
    return subprocess.run(
        [*EVACD, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=clean | dict(env or {}),
    )


@pytest.fixture
def metadata_url() -> Iterator[str]:
    with subprocess.Popen(
        [*EVACD, "simulate", "gcp", "--json"], stdout=subprocess.PIPE, text=True
    ) as simulator:
        assert simulator.stdout is not None
        yield json.loads(simulator.stdout.readline())["url"]
        simulator.terminate()
        assert simulator.wait(PATIENCE) == 0


@pytest.fixture
def here(tmp_path: Path) -> list[str]:
    """Flags that keep all that the daemon touches in a directory of the test."""
    return [
        f"--state-dir={tmp_path}/state",
        f"--socket={tmp_path}/run/evacd.sock",
        f"--admin-socket={tmp_path}/run/admin.sock",
        # The machine's own bus is none of a test's business.
        "--shutdown-watch=off",
    ]


def test_run_without_a_store_refuses_and_says_why() -> None:
    done = evacd("run")

    assert done.returncode == 2
    assert done.stderr.startswith("evacd: --store: store.targets: expected a store")
    assert "a local directory dies with the VM" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_setting_is_one_line_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "evac.toml"
    file.write_text("[store]\ntargets = ['file:///x']\n\n[memory]\nbudgte = '5%'\n")

    for done in (evacd("run", "--config", str(file)), evacd("run", env={"EVAC_CONFIG": str(file)})):
        assert done.returncode == 2
        assert done.stderr == (
            f'evacd: {file}:5: memory.budgte: expected a key of [memory]; did you mean "budget"?\n'
        )


def test_a_config_file_that_was_named_must_exist(tmp_path: Path) -> None:
    done = evacd("run", "--config", f"{tmp_path}/none.toml")

    assert (done.returncode, "No such file" in done.stderr) == (2, True)


@pytest.mark.parametrize("arguments", [(), ("fly",), ("run", "--no-such-flag"), ("simulate",)])
def test_wrong_usage_exits_2(arguments: tuple[str, ...]) -> None:
    done = evacd(*arguments)

    assert done.returncode == 2
    assert done.stderr.startswith("usage: evacd")


def test_help_has_examples_and_exit_codes() -> None:
    done = evacd("--help")

    assert done.returncode == 0
    for part in ("examples:", "exit codes:", "evacd run --store", "simulate"):
        assert part in done.stdout


def test_help_of_run_names_every_variable_with_its_flag() -> None:
    shown = evacd("run", "--help", env={"COLUMNS": "200"}).stdout

    for part in ("--store URL", "EVAC_STORE)", "--memory-budget", "50%; EVAC_MEMORY_BUDGET)"):
        assert part in shown


def test_version_is_the_distribution_s() -> None:
    assert evacd("--version").stdout.startswith("evacd 0.")


def test_check_passes_where_all_is_well(here: list[str], metadata_url: str, tmp_path: Path) -> None:
    arguments = ["check", *here, f"--store=file://{tmp_path}/store", "--store-is-durable"]
    arguments += ["--cloud=gcp", f"--metadata-url={metadata_url}", "--memory-budget=1MiB"]

    done = evacd(*arguments)

    assert done.returncode == 0, done.stdout
    assert "FAIL" not in done.stdout
    assert "no notice" in done.stdout
    assert done.stderr == ""


def test_check_fails_where_anything_fails_and_says_what_to_do(here: list[str]) -> None:
    done = evacd("check", *here, "--cloud=none")

    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert len(failed) == 1
    assert "give --store" in failed[0]


def test_a_variable_that_nobody_reads_is_told_at_the_start_and_by_check(
    here: list[str], tmp_path: Path
) -> None:
    env = {"EVAC_MEMORY_BUGDET": "1GiB", "EVAC_SITE": "a"}

    table = evacd("check", *here, "--cloud=none", env=env).stdout
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    arguments = [*here, "--cloud=none", f"--store=file://{tmp_path}/s"]
    start = evacd("run", *arguments, f"--socket={in_the_way}/evacd.sock", env=env)

    (line,) = [one for one in table.splitlines() if "variables" in one]
    assert line.startswith("warn")
    assert "EVAC_MEMORY_BUGDET -> is EVAC_MEMORY_BUDGET meant?" in line
    assert "EVAC_SITE" not in table + start.stderr
    assert start.returncode == 1
    assert "variable.ignored" in start.stderr
    assert "EVAC_MEMORY_BUGDET" in start.stderr


def test_check_speaks_json_to_programs(here: list[str]) -> None:
    done = evacd("check", "--json", *here, env={"EVAC_CLOUD": "none"})

    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"]) == (1, False)
    origins = {row["key"]: row["origin"] for row in document["config"]}
    assert origins["notice.cloud"] == "EVAC_CLOUD"
    assert origins["state.dir"] == "--state-dir"


def test_check_reports_a_wrong_configuration_as_a_failed_check() -> None:
    table, document = evacd("check", "--log-level=x"), evacd("check", "--json", "--log-level=x")

    assert (table.returncode, document.returncode) == (1, 1)
    assert table.stdout.startswith("FAIL  configuration  --log-level: log.level: expected one of")
    assert json.loads(document.stdout)["findings"][0]["name"] == "configuration"


def test_check_ends_although_a_check_hangs(here: list[str], tmp_path: Path) -> None:
    # Reading a FIFO that nobody writes hangs, as a dead NFS server does.
    os.mkfifo(tmp_path / "secret")

    done = evacd(
        "check",
        *here,
        "--cloud=none",
        "--departure-webhook-url=http://127.0.0.1:1/",
        f"--departure-secret-file={tmp_path}/secret",
    )

    assert done.returncode == 1
    assert "FAIL  departure      no answer within 5 s" in done.stdout


def test_an_interrupted_check_ends_at_once_and_says_nothing(
    here: list[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hung:
        url = f"http://127.0.0.1:{hung.getsockname()[1]}"
        with subprocess.Popen(
            [*EVACD, "check", *here, "--cloud=gcp", f"--metadata-url={url}"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as check:  # fmt: skip
            hung.settimeout(PATIENCE)
            line, _ = hung.accept()
            check.send_signal(signal.SIGINT)
            said = check.communicate(timeout=PATIENCE)
            line.close()

    assert (check.returncode, said) == (130, ("", ""))


def test_without_the_agent_s_packages_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules |= dict.fromkeys(['structlog', 'aiohttp']); "
        "from evacd.cli import main; sys.exit(main(['run', '--store', 'file:///x']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.returncode == 1
    assert "pip install 'evac[agent]'" in done.stderr
    assert "Traceback" not in done.stderr
