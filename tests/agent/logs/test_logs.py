"""What reaches stderr, in a process of its own: logging is set up once per process."""

import json
import os
import pty
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

SCRIPT = """
import logging, sys, structlog
from pathlib import Path
from evacd.config import LogConfig
from evacd.logs import configure

log = structlog.get_logger()
configure(LogConfig(format=sys.argv[1], level=sys.argv[2]))
with structlog.contextvars.bound_contextvars(order="o-1"):
    log.info("flush.finished", nbytes=7, path=Path("/x"))
    logging.getLogger("evac").warning("daemon gone: %s", "why")
log.debug("too.quiet")
try:
    secret = "hunter2"[:]
    1 / 0
except ZeroDivisionError:
    log.exception("flush.broke")
"""


def lines(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_without_a_terminal_each_event_is_one_line_of_json() -> None:
    finished, gone, broke = map(json.loads, lines("auto", "info"))

    assert datetime.fromisoformat(finished.pop("timestamp")).utcoffset() == timedelta(0)
    assert finished == {
        "event": "flush.finished",
        "level": "info",
        "nbytes": 7,
        "order": "o-1",
        "path": "PosixPath('/x')",
    }
    assert (gone["event"], gone["logger"], gone["order"]) == ("daemon gone: why", "evac", "o-1")
    assert broke["exception"][0]["exc_type"] == "ZeroDivisionError"
    assert "order" not in broke


def test_the_level_holds_for_both_kinds_of_loggers() -> None:
    assert [json.loads(line)["event"] for line in lines("json", "error")] == ["flush.broke"]
    assert len(lines("json", "debug")) == 4


def test_tracebacks_show_no_local_variables() -> None:
    for format in ("json", "console"):
        shown = "".join(line for line in lines(format, "error") if "[:]" not in line)
        assert "ZeroDivisionError" in shown
        assert "hunter2" not in shown


def test_on_a_terminal_events_are_columns_for_people() -> None:
    ours, theirs = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", SCRIPT, "auto", "info"], stderr=theirs, check=True)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)

    assert "flush.finished" in shown
    assert not shown.startswith("{")
    assert "\x1b[" in shown


def test_console_into_a_file_has_no_colours() -> None:
    assert "\x1b[" not in "".join(lines("console", "info"))


UNREAD = """
import os, sys, structlog
from evacd.config import LogConfig
from evacd.logs import configure

log = structlog.get_logger()
configure(LogConfig(format="json"))
for number in range(20_000):
    log.info("event", number=number, padding="x" * 100)
print("through", flush=True)
sys.stdin.readline()
log.info("last")
sys.stdin.readline()
"""


def test_whoever_logs_waits_for_nobody_who_does_not_read_and_says_what_was_lost() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", UNREAD],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline() == "through\n"
    # Now somebody reads again, and all that was kept comes in its order.
    told: list[dict[str, Any]] = []
    while len(told) < 1000:
        told.append(json.loads(process.stderr.readline()))
    assert [one["number"] for one in told] == list(range(1000))
    process.stdin.write("\n")
    process.stdin.flush()
    rest: list[dict[str, Any]] = []
    while not rest or rest[-1]["event"] != "last":
        rest.append(json.loads(process.stderr.readline()))
    _, nothing = process.communicate("\n")
    assert (process.returncode, nothing) == (0, "")
    *_, lost, _ = rest
    numbers = [one["number"] for one in [*told, *rest[:-2]]]
    assert numbers == list(range(len(numbers)))
    assert (lost["event"], lost["lines"]) == ("log.lost", 20_000 - len(numbers))


def test_a_reader_that_is_gone_ends_nobody() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "json", "debug"], stderr=write, check=False
    )
    os.close(write)
    assert done.returncode == 0
