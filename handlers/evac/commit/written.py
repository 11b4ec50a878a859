"""Which bodies this process has put that no manifest names yet: another try does not send them again. Pure.

A try of a generation is all ranks' bodies and then small objects, and any call of it may fail in a way that passes.
What it had put by then lies there whole, under its name: of eight ranks whose last body failed, seven need not go once more, and
where a manifest was refused for a moment, none. It is spared only where it is still there with its size, and where
the checksums are those of what was put: another launch of the same step is another body.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Bodies of which it is remembered; more than any node has under way at once.
_REMEMBERED = 4096


@dataclass
class Written:
    """Of one process; by the store's URL and the key."""

    _of: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def note(self, store: str, key: str, nbytes: int, sums: tuple[int, ...]) -> None:
        """A body is there, and these are its checksums."""
        self._of.pop((store, key), None)
        self._of[store, key] = nbytes, sums
        if len(self._of) > _REMEMBERED:
            del self._of[next(iter(self._of))]

    def any_below(self, store: str, folder: str) -> bool:
        """Whether it is worth looking what is in *folder*."""
        return any(url == store and key.startswith(f"{folder}/") for url, key in self._of)

    def is_there(
        self, store: str, key: str, sums: tuple[int, ...], files: Mapping[str, int]
    ) -> bool:
        """Whether a body of these checksums was put and is there, where *files* are."""
        known = self._of.get((store, key))
        return known is not None and known == (files.get(key), sums)

    def nbytes_of(self, store: str, keys: Mapping[str, int]) -> int:
        """How much of these bodies was put, as far as is known; *keys* with the size of each."""
        return sum(
            n for key, n in keys.items() if (one := self._of.get((store, key))) and one[0] == n
        )

    def forget(self, store: str, folder: str) -> None:
        """Manifests name what is in *folder*, and say so to whoever asks."""
        for one in [one for one in self._of if one[0] == store and one[1].startswith(f"{folder}/")]:
            del self._of[one]
