"""What can be read over HTTP: ``/metrics``, ``/healthz``, ``/readyz``. GET only.

Nothing here changes anything: orders are taken on the admin socket, by file mode. Whatever
keeps the port from being had is said and stops nothing: the daemon is there for the notice.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from evacd.report.vitals import Verdict

log = structlog.get_logger()

# A scrape that still runs at the end waits no longer than this.
_STOP_SECONDS = 0.5


@dataclass(frozen=True)
class Serving:
    """Where the pages are, or why nowhere.

    Attributes:
        url: "" where they are not served.
        reason: Why; "" where they are, or are not wanted.
    """

    url: str = ""
    reason: str = ""


@asynccontextmanager
async def serving(
    address: str,
    port: int,
    *,
    metrics: Callable[[], bytes],
    content_type: str,
    healthy: Callable[[], Verdict],
    ready: Callable[[], Verdict],
) -> AsyncIterator[Serving]:
    """Serve them for as long as the context is open.

    Args:
        port: 0 takes a free one.
        metrics: The metrics as text.
        content_type: Of *metrics*.
    """

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": content_type})

    async def show_health(_: web.Request) -> web.Response:
        return _answer(healthy())

    async def show_ready(_: web.Request) -> web.Response:
        return _answer(ready())

    app = web.Application(middlewares=[_only_get])
    for path, show in (
        ("/metrics", show_metrics),
        ("/healthz", show_health),
        ("/readyz", show_ready),
    ):
        app.router.add_get(path, show, allow_head=False)
    runner = web.AppRunner(
        app, access_log=None, handle_signals=False, shutdown_timeout=_STOP_SECONDS
    )
    await runner.setup()
    try:
        yield await _listen(runner, address, port)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, address: str, port: int) -> Serving:
    try:
        await web.TCPSite(runner, address, port).start()
    except OSError as error:
        reason = f"{address} port {port}: {error.strerror or type(error).__name__}"
        log.warning("page.refused", reason=reason, cure="set --http-port, or --no-http")
        return Serving(reason=reason)
    host, bound, *_ = runner.addresses[0]
    url = f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"
    log.info("page.served", url=url)
    return Serving(url)


@web.middleware
async def _only_get(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.method != "GET":
        return web.Response(status=405, headers={"Allow": "GET"}, text="GET only\n")
    return await handler(request)


def _answer(verdict: Verdict) -> web.Response:
    body = {"ok": verdict.good, **{name: why or "ok" for name, why in verdict.parts.items()}}
    return web.Response(
        status=200 if verdict.good else 503,
        text=json.dumps(body) + "\n",
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
