"""Who asks an etcd, and what it gave that one: a token, and which passwords it took. Pure.

Passwords are made to be slow to look at: a thousand agents that show a wrong one every few seconds would keep an
etcd busy. So one that was refused is asked with seldom, and another one at once.
"""

from dataclasses import dataclass, field

# Tries at most between two that ask with a password that was refused.
_MOST_SKIPPED = 5


@dataclass
class Ticket:
    """What a process was given last, shared by its connections.

    Attributes:
        token: None where none was asked for yet; "" where etcd knows no users.
    """

    token: str | None = field(default=None, repr=False)
    # The last that was taken, and by those that were not, since: how often, and tries that are still skipped.
    _taken: str = field(default="", repr=False)
    _refused: dict[str, tuple[int, int]] = field(
        default_factory=dict[str, tuple[int, int]], repr=False
    )

    def forget(self, token: str) -> None:
        """It is worth nothing any more; another one that was given since is."""
        if self.token == token:
            self.token = None

    def passwords(self, password: str) -> tuple[str, ...]:
        """With which to ask now, one after the other; none where that would be too often.

        It is renewed in its file first, and then in etcd: in between, the one of before is good yet.

        Args:
            password: As it lies in its file.
        """
        known = dict.fromkeys((password, self._taken or password))
        due: list[str] = []
        refused = dict[str, tuple[int, int]]()
        for one in known:
            times, skip = self._refused.get(one, (0, 0))
            if not skip:
                due.append(one)
            refused[one] = (times, max(skip - 1, 0))
        self._refused = refused
        return tuple(due)

    def took(self, password: str) -> None:
        """It is right."""
        self._taken, self._refused = password, {}

    def refused(self, password: str) -> None:
        """It is wrong, for now."""
        times = self._refused.get(password, (0, 0))[0] + 1
        self._refused[password] = (times, min(2**times - 1, _MOST_SKIPPED))


@dataclass(frozen=True)
class Login:
    """Who asks; "" for nobody."""

    user: str = ""
    password: str = field(default="", repr=False)
    ticket: Ticket = field(default_factory=Ticket, repr=False)
