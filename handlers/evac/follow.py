"""Watches a running evacuation from outside, until it has settled."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from evac.errors import NotConnected
from evac.incident import report_command
from evac.show import render_status

_PERIOD_SECONDS = 0.2
# Longer than any cloud's window: a flush in overtime is followed until it ends.
_LIMIT_SECONDS = 3600.0


def follow(read: Callable[[], Mapping[str, Any]], *, as_json: bool = False) -> int:
    """Poll *read* until the order has settled; 0 if all was saved, 1 if anything was lost."""
    ends = time.monotonic() + _LIMIT_SECONDS  # noqa: TID251 - a person waits in real time
    last = ""
    while True:
        try:
            status = read()
        except NotConnected as error:
            _say(f"evacd went away while the order ran: {error.reason}; see `evac report`")
            return 1
        order = status.get("order")
        if order is None:
            _say("the order was withdrawn")
            if as_json:
                print(json.dumps(status, indent=1))
            return 0
        line = _progress(order, status.get("outcomes", ()))
        if line != last and not as_json:
            _say(line)
            last = line
        if order["settled"] or time.monotonic() > ends:  # noqa: TID251
            break
        time.sleep(_PERIOD_SECONDS)
    if as_json:
        print(json.dumps(status, indent=1))
    else:
        print(f"{render_status(status)}\n\nThe timeline: {report_command(status)}")
    lost = any(not outcome["kept"] for outcome in status.get("outcomes", ()))
    return 1 if lost or not order["settled"] else 0


def _progress(order: Mapping[str, Any], outcomes: Any) -> str:
    """What is known so far; a verdict only once nothing can change it any more."""
    saved = sum(outcome["kept"] for outcome in outcomes)
    if order["settled"]:
        return f"{order['id']}: {saved} saved, {len(outcomes) - saved} lost"
    failed = [f"{one['unit']} ({one['reason']})" for one in outcomes if not one["kept"]]
    still = f"; not saved yet: {', '.join(failed)}" if failed else ""
    return f"{order['id']}: running{f', {saved} saved so far' if saved else ''}{still}"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
