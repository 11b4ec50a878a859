"""The demos' stage hands: nothing that a demo starts outlives it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.daemon.nodes import until

# Starts one that starts another, as an agent its worker, and says who they are.
DEMO = """
import sys, time
from pathlib import Path
from integration.demo.stage import Processes
Processes(Path(sys.argv[1])).start("agent", ["-c", '''
import os, subprocess, sys, time
worker = "from integration.demo.stage import end_with_parent; end_with_parent(); print(flush=True); import time; time.sleep(3600)"
child = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
time.sleep(3600)
'''])
time.sleep(3600)
"""


def runs(pid: int) -> bool:
    """Neither gone nor a corpse."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_of_a_demo_outlives_it_however_it_ends(
    end: signal.Signals, tmp_path: Path
) -> None:
    demo = subprocess.Popen([sys.executable, "-c", DEMO, str(tmp_path)], stderr=subprocess.DEVNULL)
    log = tmp_path / "agent.log"
    until("all of it runs", lambda: log.exists() and log.read_text().endswith("\n"))
    agent, worker = map(int, log.read_text().split())
    assert runs(agent)
    assert runs(worker)

    demo.send_signal(end)
    demo.wait()

    until("its agent has ended", lambda: not runs(agent))
    until("its worker has ended", lambda: not runs(worker))


# Its worker says that it runs, and asks to end with an agent that has ended by then.
LATE = """
import sys, time
from pathlib import Path
from integration.demo.stage import Processes
Processes(Path(sys.argv[1])).start("agent", ["-c", '''
import os, subprocess, sys
worker = "import sys, time; from integration.demo.stage import end_with_parent; sys.stdin.readline(); end_with_parent(); time.sleep(3600)"
child = subprocess.Popen([sys.executable, "-c", worker], start_new_session=True, stdin=subprocess.PIPE)
print(child.pid, flush=True)
'''])
time.sleep(3600)
"""


def test_a_worker_whose_agent_ended_while_it_began_ends_as_well(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LATE, str(tmp_path)]) as demo:
        log = tmp_path / "agent.log"
        until("the agent has begun it", lambda: log.exists() and log.read_text().endswith("\n"))
        # The agent ends, and with it the other end of what the worker waits for.
        until("the worker has ended", lambda: not runs(int(log.read_text())))
        demo.kill()
