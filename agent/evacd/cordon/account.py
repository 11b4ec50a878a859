"""How a cordon stands: what is wished of it, whether that is done, and what is wrong. Pure."""

from typing import Any


class Account:
    """Begins as one of whom nothing was wished yet."""

    def __init__(self) -> None:
        self._wished: str | None = None
        self._done = True
        self._wrong: dict[str, str] = {}

    @property
    def done(self) -> bool:
        """What was wished last is so."""
        return self._done

    def wish(self, *, closed: bool) -> None:
        """Something else is wished: what was wrong with the one before is of no use any more."""
        self._wished, self._done = "closed" if closed else "open", False
        self._wrong.clear()

    def ended(self, what: str, wrong: str | None) -> None:
        """*what* was done, or failed because of *wrong*."""
        self._wrong.pop(what, None)
        if wrong is not None:
            self._wrong[what] = wrong

    def fulfilled(self) -> None:
        """What was wished is so."""
        self._done = True

    def shown(self, *, closed: bool) -> dict[str, Any]:
        """For the status.

        Args:
            closed: It may be closed, as is known from before where nothing was wished.
        """
        return {
            "wished": self._wished or ("closed" if closed else "open"),
            "done": self._done,
            "reason": "; ".join(dict.fromkeys(self._wrong.values())),
        }
