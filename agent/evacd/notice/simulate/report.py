"""What `evacd simulate` prints, a line at a time: where it is, what happened, when it ends."""

import asyncio
import json
import sys
from collections.abc import Collection
from typing import NoReturn

from evacd.notice.simulate.cloud import BANNER, CONTROL

# The words for what was done, where an action has one.
_PAST = {"preempt": "preempted", "clear": "cleared", "cancel": "cancelled", "stop": "stopping"}


class Report:
    """Told what is done, it says so, and when a real machine would be gone."""

    def __init__(self, *, as_json: bool, ends: Collection[str], takes_back: Collection[str]):
        """Make it ready.

        Args:
            ends: Actions after which a machine would be gone.
            takes_back: Actions after which it would not.
        """
        self._as_json = as_json
        self._ends = ends
        self._takes_back = takes_back
        self._ending = asyncio.Event()
        self._staying = asyncio.Event()
        self._staying.set()

    def started(self, url: str, *, cloud: str, actions: list[str]) -> None:
        """It serves at *url*."""
        control = url + CONTROL
        if self._as_json:
            first = {"url": url, "control": control, "what": BANNER, "cloud": cloud}
            self._line(json.dumps(first | {"actions": actions}))
            return
        self._line(f"{BANNER}: {url}")
        self._line(f"give notice:  curl -X POST {control}/preempt")
        self._line(f"take it back: curl -X POST {control}/clear")
        self._line(f"or one of:    {', '.join(actions)}")

    def acted(self, action: str, seconds: float) -> None:
        """*action* was done; where it ends the machine, in so many seconds."""
        word, end = _PAST.get(action, action), ""
        if action in self._ends:
            end = f"; the end is in {seconds:g} s"
            self._staying.clear()
            self._ending.set()
        elif action in self._takes_back:
            self._ending.clear()
            self._staying.set()
        self._event(word, f"{action} was done{end}")

    async def ends_come(self, seconds: float) -> NoReturn:
        """Say when a real machine would be gone, unless the notice is taken back before."""
        while True:
            await self._ending.wait()
            try:
                async with asyncio.timeout(seconds):
                    await self._staying.wait()
            except TimeoutError:
                self._event("gone", "a real machine would be gone now")
                await self._staying.wait()

    def _event(self, word: str, text: str) -> None:
        if self._as_json:
            self._line(json.dumps({"event": word, "text": text}))
        else:
            self._line(f"{word}: {text}")

    def _line(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
