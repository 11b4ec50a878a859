"""What of a reservation is still to come: for both shells, and pure.

The daemon answers `reserve` slot by slot, as it makes their memory, and refuses `acquire` while all
that has come is in use. So whoever was refused while more is on its way asks again as soon as
there are news of it, and not before: nobody polls.
"""


class Arrivals:
    """The answers to every `reserve` of one client.

    Attributes:
        news: How often something was told that may let an `acquire` succeed that was refused
            before it: a slot has come, or no further one will.
    """

    def __init__(self) -> None:
        self.news = 0
        self._asked = 0
        self._open: set[int] = set()

    def asked(self) -> int:
        """A `reserve` is about to be sent; its number."""
        self._asked += 1
        self._open.add(self._asked)
        return self._asked

    def came(self, number: int, *, last: bool) -> None:
        """A slot of one was announced; those before it are replaced from then on."""
        self.news += 1
        self._open = {one for one in self._open if one >= number}
        if last:
            self._open.discard(number)

    def ended(self, number: int) -> None:
        """No further slot of one will come: it was refused, or the connection was lost."""
        self.news += 1
        self._open.discard(number)

    def awaited(self, seen: int) -> bool:
        """Whether asking is of no use now, and will be.

        Args:
            seen: `news` before the question that was refused.
        """
        return self.news == seen and bool(self._open)
