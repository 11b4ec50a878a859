"""`evacd simulate` as its own process: what it prints, what moves it, how it ends."""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from evacd.notice import simulate
from evacd.notice.simulate.cloud import BANNER
from tests.agent.notice.hearing import LIMIT

PROGRAM = """
import argparse, asyncio, sys
from evacd.notice import simulate
parser = argparse.ArgumentParser(prog="evacd simulate")
simulate.add_arguments(parser)
sys.exit(asyncio.run(simulate.serve(parser.parse_args())))
"""


@asynccontextmanager
async def simulator(*arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, *arguments, stdout=PIPE, stderr=PIPE
    )
    try:
        async with asyncio.timeout(LIMIT):
            yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().rstrip("\n")


async def document(process: Process) -> dict[str, Any]:
    document = json.loads(await line(process))
    assert isinstance(document, dict)
    return document


async def test_the_first_line_says_what_and_where_it_is() -> None:
    async with simulator("gcp") as process:
        first = await line(process)

    what, _, url = first.partition(": ")
    assert what == BANNER
    assert url.startswith("http://127.0.0.1:")


async def test_the_first_json_line_has_url_and_control() -> None:
    async with simulator("gcp", "--json") as process:
        first = await document(process)

    assert first == {
        "url": first["url"],
        "control": first["url"] + "/evac-simulator",
        "what": BANNER,
        "cloud": "gcp",
        "actions": first["actions"],
    }
    assert {"preempt", "clear", "maintenance"} <= set(first["actions"])


async def test_the_control_gives_the_notice_and_takes_it_back(
    session: aiohttp.ClientSession,
) -> None:
    async with simulator("gcp", "--json") as process:
        control = (await document(process))["control"]
        async with session.post(f"{control}/preempt") as response:
            assert response.status == 200
        assert (await document(process))["event"] == "preempted"
        async with session.post(f"{control}/clear") as response:
            assert response.status == 200
        assert (await document(process))["event"] == "cleared"


async def test_sigusr1_gives_the_notice_and_the_end_is_told() -> None:
    async with simulator("gcp", "--json", "--notice-seconds", "0.01") as process:
        await document(process)
        process.send_signal(signal.SIGUSR1)

        assert (await document(process))["event"] == "preempted"
        assert (await document(process))["event"] == "gone"


async def test_preempt_after_gives_the_notice_by_itself() -> None:
    async with simulator("gcp", "--json", "--preempt-after", "0.01") as process:
        await document(process)

        assert (await document(process))["event"] == "preempted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_ends_in_order_even_while_a_get_hangs(
    session: aiohttp.ClientSession, number: signal.Signals
) -> None:
    async with simulator("gcp", "--json") as process:
        url = URL((await document(process))["url"])
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            b"GET /computeMetadata/v1/instance/preempted?wait_for_change=true HTTP/1.1\r\n"
            b"Host: 127.0.0.1\r\nMetadata-Flavor: Google\r\n\r\n"
        )
        await writer.drain()
        # Once a later connection is answered, the first request is being held.
        async with session.get(url / "none") as response:
            assert response.status == 404
        process.send_signal(number)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        assert await process.wait() == 0


async def test_a_taken_port_is_exit_1_and_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        async with simulator("gcp", "--port", port) as process:
            _, said = await process.communicate()

    assert process.returncode == 1
    assert f"127.0.0.1:{port}: " in said.decode()


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser("evacd simulate")
    simulate.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("azure-blue",),
        ("gcp", "--port", "70000"),
        ("gcp", "--preempt-after", "-1"),
        ("gcp", "--notice-seconds", "nan"),
        ("gcp", "--fault", "flood"),
        ("gcp", "--fault", "status"),
    ],
)
def test_a_wrong_argument_is_exit_2(arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments)

    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--scenario", "/nowhere/at/all.toml"), "/nowhere/at/all.toml: expected a file that can"),
        (("--host", "0.0.0.0"), "0.0.0.0: expected a loopback address, or --listen-anywhere"),
        (("--host", "somewhere"), "somewhere: expected a loopback address"),
    ],
)
async def test_wrong_usage_is_exit_2_and_says_what_was_expected(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert await simulate.serve(parsed("gcp", *arguments)) == 2
    assert said in capsys.readouterr().err


async def test_a_wrong_scenario_says_where_and_what_was_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "drill.toml"
    file.write_text('[[at]]\nseconds = 1\naction = "explode"\n')

    assert await simulate.serve(parsed("gcp", "--scenario", str(file))) == 2
    assert f"{file}: at[1].action: expected one of cancel, " in capsys.readouterr().err


@pytest.mark.parametrize("name", simulate.clouds())
async def test_every_cloud_lists_its_actions_and_does_each(
    session: aiohttp.ClientSession, name: str
) -> None:
    async with simulator(name, "--json") as process:
        first = await document(process)
        async with session.get(first["control"]) as response:
            assert response.headers["Evac-Simulator"] == "yes"
            told = await response.json()
        for action in told["actions"]:
            async with session.post(f"{first['control']}/{action}") as response:
                assert await response.json() == {"done": action}

    assert (told["what"], told["cloud"]) == (BANNER, name)
    assert told["actions"] == first["actions"]
    assert {"preempt", "clear"} <= set(told["actions"])


async def test_a_host_that_is_not_loopback_is_taken_where_it_is_meant() -> None:
    async with simulator("gcp", "--host", "0.0.0.0", "--listen-anywhere", "--json") as process:
        assert (await document(process))["url"].startswith("http://0.0.0.0:")


async def test_a_fault_by_flag_is_in_force_from_the_start(session: aiohttp.ClientSession) -> None:
    async with simulator("gcp", "--json", "--fault", "status=503,first=1") as process:
        url = (await document(process))["url"] + "/computeMetadata/v1/instance/preempted"
        seen = []
        for _ in range(2):
            async with session.get(url, headers={"Metadata-Flavor": "Google"}) as response:
                seen.append((response.status, response.headers["Evac-Simulator"]))

    assert seen == [(503, "yes"), (200, "yes")]


async def test_a_scenario_is_played(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    file = tmp_path / "drill.toml"
    file.write_text(
        """
        faults = ["status=500@instance/id"]
        [[at]]
        seconds = 0.01
        action = "preempt"
        [[at]]
        seconds = 0.02
        action = "clear"
        faults = ["status=418@instance/id"]
        """
    )
    async with simulator("gcp", "--json", "--scenario", str(file)) as process:
        url = (await document(process))["url"] + "/computeMetadata/v1/instance/id"
        happened = [(await document(process))["event"] for _ in range(2)]
        async with session.get(url) as response:
            assert response.status == 418

    assert happened == ["preempted", "cleared"]
