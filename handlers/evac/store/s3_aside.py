"""Asks `s3_process`, and understands its answer."""

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from evac.errors import StoreRejected, StoreUnavailable
from evac.store import answers
from evac.store.direct import Stopped
from evac.store.threads import in_thread

_PROGRAM = str(Path(__file__).with_name("s3_process.py"))
# -P: its own folder holds files named like packages that it needs.
_COMMAND = (sys.executable, "-P", "-W", "ignore", _PROGRAM)
SECONDS = 60.0


async def ask(request: Mapping[str, Any], *, key: str, seconds: float = SECONDS) -> dict[str, Any]:
    """One question to boto3.

    Args:
        key: What an error is about.
        seconds: After which it is killed.

    Raises:
        StoreUnavailable: No answer, or one that another try may change.
        StoreRejected: One that none will.
    """
    return await in_thread(partial(ask_blocking, request, key, seconds))


def ask_blocking(
    request: Mapping[str, Any], key: str, seconds: float, stop: Event
) -> dict[str, Any]:
    """The same for threads; ends within 0.1 s when told to stop."""
    try:
        started = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback could repeat what it was given
            text=True,
        )
    except OSError as error:
        # Out of processes, descriptors or memory: that may pass.
        reason = f"boto3 could not be started: {error.strerror or type(error).__name__}"
        raise StoreUnavailable(key, reason) from error
    with started as child:
        try:
            answer = _talk(child, json.dumps(request), key, seconds, stop)
        except BaseException:
            child.kill()
            raise
    if "rejected" in answer:
        raise StoreRejected(key, str(answer["rejected"]))
    if "silence" in answer:
        raise answers.of_silence(key, str(answer["silence"]))
    if "status" in answer:
        code = str(answer["code"])
        # A HEAD has no body: boto3 then gives the number as the code.
        raise answers.of_status(key, int(answer["status"]), "" if code.isdecimal() else code)
    return answer


def _talk(
    child: "subprocess.Popen[str]", request: str, key: str, seconds: float, stop: Event
) -> dict[str, Any]:
    sent: str | None = request
    for _ in range(max(1, int(seconds / 0.1))):
        if stop.is_set():
            raise Stopped
        try:
            text, _ = child.communicate(sent, timeout=0.1)
        except subprocess.TimeoutExpired:
            sent = None  # it is on its way
            continue
        try:
            answer: dict[str, Any] = json.loads(text)
        except ValueError:
            raise StoreUnavailable(key, f"boto3 has ended with {child.returncode}") from None
        return answer
    raise StoreUnavailable(key, "boto3 does not answer: timed out")
