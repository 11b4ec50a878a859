"""The flags of `evacd`, made from the table of settings."""

import argparse
from collections.abc import Mapping

from evacd.config import SETTINGS, Config, explain
from evacd.config.table import SECTIONS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One group of flags per section; a flag that is not given stays None."""
    defaults = {row.key: row.value for row in explain(Config())}
    for section, kind in SECTIONS.items():
        # The first line of the section's own docstring.
        group = parser.add_argument_group(f"[{section}]", (kind.__doc__ or "").split("\n")[0])
        for one in SETTINGS:
            if one.section != section:
                continue
            default = f"{defaults[one.key]}; " if defaults[one.key] else ""
            help = f"{one.help} ({default}{one.env})".replace("%", "%%")
            if one.kind.flag:
                group.add_argument(
                    one.flag,
                    dest=one.key,
                    help=help,
                    action=argparse.BooleanOptionalAction,
                    default=None,
                )
            else:
                group.add_argument(
                    one.flag,
                    dest=one.key,
                    help=help,
                    action="append" if one.kind.repeated else "store",
                    metavar=one.kind.metavar,
                )


def given(arguments: argparse.Namespace) -> Mapping[str, object]:
    """What was given, by dotted key, for `evacd.config.load`."""
    values = vars(arguments)
    return {one.key: values[one.key] for one in SETTINGS if values.get(one.key) is not None}
