"""What every simulated cloud has in common, and how people take hold of one.

The switch is beside the service: ``GET /evac-simulator`` tells what this is and lists what it
can do, ``POST /evac-simulator/ACTION`` does it, and ``POST /evac-simulator/faults`` puts the
faults of its body, one a line, in place of those in force. Only from this machine.

Every answer that is sent as HTTP, true or faulty, carries ``Evac-Simulator: yes``. A client
ignores a header that it does not know (RFC 9110, 5.1), so this changes no protocol, and
whoever wonders what answers sees it with ``curl -i``.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from aiohttp import web

from evacd.notice.simulate.faults import KINDS, Faults, parse

BANNER = "evac simulator, not a metadata service"
CONTROL = "/evac-simulator"
MARK = "Evac-Simulator"

Hook: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass(frozen=True)
class Seen:
    """One request as it came in.

    Attributes:
        target: Path and query.
        headers: By lower-case name.
    """

    method: str
    target: str
    headers: Mapping[str, str]


class Cloud(Protocol):
    """A metadata service to play with.

    Attributes:
        app: What is served, by whoever made it.
        fault: Asked first about every metadata request: a response goes out in place of the
            true one, None lets it pass.
    """

    app: web.Application
    fault: Hook | None

    @property
    def requests(self) -> Sequence[object]:
        """What came in, oldest first; what is kept of one is the cloud's business."""
        ...

    @property
    def actions(self) -> Mapping[str, Callable[[], None]]:
        """What can be made to happen, by name; ``preempt`` and ``clear`` among them."""
        ...


def offer(
    cloud: Cloud,
    faults: Faults,
    *,
    act: Callable[[str], None],
    name: str,
) -> None:
    """Put the switch beside *cloud*, its faults and the mark; before it is served."""

    async def describe(request: web.Request) -> web.StreamResponse:
        if not from_here(request):
            return _refusal()
        return web.json_response(
            {
                "what": BANNER,
                "cloud": name,
                "actions": sorted(cloud.actions),
                "faults": [fault.kind for fault in faults.faults],
                "kinds_of_faults": dict(KINDS),
            }
        )

    async def control(request: web.Request) -> web.StreamResponse:
        if not from_here(request):
            return _refusal()
        action = request.match_info["action"]
        if action not in cloud.actions:
            expected = ", ".join(sorted(cloud.actions))
            return web.json_response({"error": f"expected one of: {expected}"}, status=404)
        act(action)
        return web.json_response({"done": action})

    async def replace(request: web.Request) -> web.StreamResponse:
        if not from_here(request):
            return _refusal()
        lines = (await request.text()).splitlines()
        try:
            wanted = [parse(line) for line in lines if line.strip()]
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        faults.clear()
        for fault in wanted:
            faults.add(fault)
        return web.json_response({"faults": len(wanted)})

    cloud.fault = faults
    faults.attach(cloud.app)
    cloud.app.on_response_prepare.append(_mark)
    cloud.app.router.add_get(CONTROL, describe)
    cloud.app.router.add_post(CONTROL + "/faults", replace)
    cloud.app.router.add_post(CONTROL + "/{action}", control)


def from_here(request: web.Request) -> bool:
    """The request comes from this machine, as far as its address can tell."""
    try:
        return ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        return False


def _refusal() -> web.Response:
    return web.json_response({"error": "only from this machine"}, status=403)


async def _mark(_: web.Request, response: web.StreamResponse) -> None:
    response.headers[MARK] = "yes"
