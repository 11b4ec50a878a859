"""Which bodies this process has put: another try does not send them again. Pure.

A try of a generation is all ranks' bodies and then small objects, and any call of it may fail in a way that passes.
What it had put by then lies there whole, under its name: of eight ranks whose last body failed, seven need not go once more, and
where a manifest was refused for a moment, none. It is spared only where it is still there with its size, and where
the checksums are those of what was put: another launch of the same step is another body.

What manifests name is spared by these, whoever asks (`put_body`). Of it only the size is remembered, for who plans.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Bodies of which it is remembered; more than any node has under way at once.
_REMEMBERED = 4096


@dataclass
class Written:
    """Of one process; by the store's URL and the key.

    Attributes:
        changes: Goes up with each change of what is known.
    """

    changes: int = 0
    _of: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    _named: dict[tuple[str, str], int] = field(default_factory=dict)

    def note(self, store: str, key: str, nbytes: int, sums: tuple[int, ...]) -> None:
        """A body is there, and these are its checksums."""
        self.changes += 1
        self._of.pop((store, key), None)
        self._of[store, key] = nbytes, sums
        if len(self._of) > _REMEMBERED:
            del self._of[next(iter(self._of))]

    def named(self, store: str, bodies: Mapping[str, int]) -> None:
        """Manifests name these, which are of such sizes: no try sends them again."""
        self.changes += 1
        for key, nbytes in bodies.items():
            self._named.pop((store, key), None)
            self._named[store, key] = nbytes
        for one in list(self._named)[:-_REMEMBERED]:
            del self._named[one]

    def only(self, store: str, folder: str, files: Mapping[str, int]) -> None:
        """Of what is in *folder*, *files* with their sizes are all that is there."""
        gone = [one for one in self._below(store, folder) if self._of[one][0] != files.get(one[1])]
        for one in gone:
            del self._of[one]
        self.changes += bool(gone)

    def any_below(self, store: str, folder: str) -> bool:
        """Whether it is worth looking what is in *folder*."""
        return bool(self._below(store, folder))

    def is_there(
        self, store: str, key: str, sums: tuple[int, ...], files: Mapping[str, int]
    ) -> bool:
        """Whether a body of these checksums was put and is there, where *files* are."""
        known = self._of.get((store, key))
        return known is not None and known == (files.get(key), sums)

    def nbytes_of(self, store: str, keys: Mapping[str, int]) -> int:
        """How much of these bodies another try would not send; *keys* with the size of each."""
        return sum(nbytes for key, nbytes in keys.items() if self._size(store, key) == nbytes)

    def forget(self, store: str, folder: str) -> None:
        """Manifests name what is in *folder*, and say so to whoever asks."""
        for one in self._below(store, folder):
            del self._of[one]
            self.changes += 1

    def _below(self, store: str, folder: str) -> list[tuple[str, str]]:
        return [one for one in self._of if one[0] == store and one[1].startswith(f"{folder}/")]

    def _size(self, store: str, key: str) -> int | None:
        known = self._of.get((store, key))
        return known[0] if known is not None else self._named.get((store, key))
