"""Requests about one node that are made again while that can help.

They have no end of their own: whoever asks has a time limit, and sees `last` when it passes.
"""

import asyncio
from asyncio import FIRST_COMPLETED, TaskGroup
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias

import structlog

from evacd.cordon.kubernetes.marks import Node, Patch, at_version
from evacd.kube import Answer, Client, Failed

log = structlog.get_logger()

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

_FIRST_PAUSE = 0.05
_MOST_PAUSE = 1.0
# After so many conflicts a patch that touches no list goes without a version.
_CONFLICTS = 3
_CONFLICT = 409


Reply: TypeAlias = Answer | Failed


class Refused(Exception):
    """Another try cannot help; the message says what was refused and what to do."""

    def __init__(self, failed: Failed) -> None:
        said = f" ({failed.message})" if failed.message else ""
        cure = _CURES.get(failed.status, failed.cure)
        super().__init__(f"{failed.reason}{said}" + (f": {cure}" if cure else ""))
        self.failed = failed
        self.status = failed.status


_CURES = {
    403: "evacd's service account may not: apply the roles of its chart",
    404: "give evacd the node's name as Kubernetes has it (NODE_NAME, or node.name)",
    422: "",
}


class Pauses:
    """How long to wait before each next try, in seconds: twice as long each time, up to a limit."""

    def __init__(self, first: float, *, most: float, obeyed: float) -> None:
        """Begin with *first*.

        Args:
            most: None is longer of itself.
            obeyed: The most that the server may ask for.
        """
        self._next = first
        self._most = most
        self._obeyed = obeyed

    def after(self, failed: Failed) -> float:
        """The pause after this failure."""
        pause, self._next = self._next, min(2 * self._next, self._most)
        return max(pause, min(failed.retry_after, self._obeyed))


class Asking:
    """Asks about one node, for one cordon."""

    def __init__(
        self,
        client: Client,
        node: str,
        *,
        dry: bool = False,
        second_after_seconds: float | None = None,
    ) -> None:
        """Ask *client*.

        Args:
            dry: The server only says what it would do.
            second_after_seconds: What has had no answer for so long is asked once more beside that,
                on a connection of its own: one of several servers may be silent, and the others not.
        """
        self._client = client
        self._second_after = second_after_seconds
        self._dry = {"dryRun": "All"} if dry else {}
        self._path = f"/api/v1/nodes/{node}"
        self.last: Failed | None = None

    async def node(self) -> Node:
        """The node as it is now.

        Raises:
            Refused: Another try cannot help.
        """
        return _object(await self.ask("GET", self._path))

    async def status(self, patch: Patch) -> None:
        """Change its status; again where somebody was faster, though it names no version.

        Raises:
            Refused: Another try cannot help.
        """
        pauses = Pauses(_FIRST_PAUSE, most=_MOST_PAUSE, obeyed=0.0)
        while True:
            try:
                await self.ask("PATCH", f"{self._path}/status", body=patch, kind=STRATEGIC)
            except Refused as refused:
                if refused.status != _CONFLICT:
                    raise
                self.last = refused.failed
                await asyncio.sleep(pauses.after(refused.failed))
            else:
                return

    async def change(
        self, make: Callable[[Node], Patch | None], node: Node, *, lists: bool = True
    ) -> Node:
        """Patch the node by what *make* makes of it; anew where somebody was faster.

        Args:
            node: As it was last seen.
            lists: The patch writes lists, and so never goes without a version.

        Returns:
            The node as it is then.

        Raises:
            Refused: Another try cannot help.
        """
        conflicts = 0
        while (patch := make(node)) is not None:
            firm = lists or conflicts < _CONFLICTS
            body = at_version(patch, node) if firm else patch
            try:
                return _object(await self.ask("PATCH", self._path, body=body, kind=MERGE))
            except Refused as refused:
                if refused.status != _CONFLICT:
                    raise
            await asyncio.sleep(min(_FIRST_PAUSE * conflicts, _MOST_PAUSE))
            conflicts += 1
            node = await self.node()
        return node

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        kind: str = "application/json",
        again: bool = True,
    ) -> object:
        """One request, made again while the server is away, busy or has a new token for us.

        Args:
            again: False makes it once: the caller has others to ask meanwhile.

        Raises:
            Refused: Another try cannot help.
        """
        # An API server may ask for more; no order has the time.
        pauses = Pauses(_FIRST_PAUSE, most=_MOST_PAUSE, obeyed=2.0)
        while True:
            told = {**(params or {}), **(self._dry if method != "GET" else {})}
            once = partial(self._client.ask, method, path, params=told, body=body, kind=kind)
            answer = await self._answered(once) if again else await once()
            if not isinstance(answer, Failed):
                self.last = None
                return answer.document
            if not again or not helps(answer):
                raise Refused(answer)
            if self.last is None:
                log.warning(
                    "cordon.delayed", by="kubernetes", reason=answer.reason, cure=answer.cure
                )
            self.last = answer
            await asyncio.sleep(pauses.after(answer))

    async def _answered(self, once: Callable[[], Coroutine[Any, Any, Reply]]) -> Reply:
        """What comes first of a request and its second one; a failure only where both have failed."""
        async with TaskGroup() as tasks:
            running = {tasks.create_task(once())}
            if self._second_after is not None:
                done, running = await asyncio.wait(running, timeout=self._second_after)
                running = done or {*running, tasks.create_task(once())}
            while True:
                done, running = await asyncio.wait(running, return_when=FIRST_COMPLETED)
                replies = [task.result() for task in done]
                heard = [each for each in replies if not isinstance(each, Failed) or each.status]
                if heard or not running:
                    for task in running:
                        task.cancel()
                    return (heard or replies)[0]


def helps(failed: Failed) -> bool:
    """Whether another try may: 401 is a token that the kubelet is about to replace."""
    return failed.status in (0, 401, 408, 429) or failed.status >= 500


def _object(document: object) -> dict[str, Any]:
    if isinstance(document, dict):
        return document
    raise Refused(Failed("the answer is no object", "is this a Kubernetes API server?"))
