"""The table of settings, read off the dataclasses: one row per field."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from evacd.config.kinds import Kind
from evacd.config.settings import Config


@dataclass(frozen=True)
class Setting:
    """One row of the table of settings.

    Attributes:
        section: Of the file: ``store``.
        name: The key below it: ``targets``.
        env: ``EVAC_STORE``.
        flag: ``--store``.
        help: One line, with the unit.
    """

    section: str
    name: str
    kind: Kind
    default: Any
    env: str
    flag: str
    help: str

    @property
    def key(self) -> str:
        """Dotted: ``store.targets``."""
        return f"{self.section}.{self.name}"


SECTIONS: Mapping[str, type] = {
    name: kind
    for name, kind in get_type_hints(Config).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}


def _table() -> Iterator[Setting]:
    for section, kind in SECTIONS.items():
        for one in dataclasses.fields(kind):
            flag = one.metadata["flag"] or f"--{section}-{one.name}".replace("_", "-")
            yield Setting(
                section,
                one.name,
                one.metadata["kind"],
                one.default,
                f"EVAC_{flag[2:]}".upper().replace("-", "_"),
                flag,
                one.metadata["help"],
            )


SETTINGS: tuple[Setting, ...] = tuple(_table())
