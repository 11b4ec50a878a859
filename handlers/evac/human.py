"""Words for people: sizes, rates and times, as reports and reasons show them. Pure."""

import math

from evac.store.durability import is_durable

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def size(nbytes: float) -> str:
    """*nbytes* in decimal units with three digits: ``4.10 GB``, ``41.0 MB``, ``12 B``."""
    # Not a number, or an integer that no float holds.
    if not abs(nbytes) < 1e300:
        return "? B"
    value, unit = float(nbytes), 0
    # 999.5 would round to "1000", which is four digits: it belongs to the next unit.
    while abs(value) >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0:
        return f"{value:.0f} B"
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"


def rate(bytes_per_second: float) -> str:
    """A transfer rate: ``1.78 GB/s``."""
    return f"{size(bytes_per_second)}/s"


def seconds(value: float) -> str:
    """A duration: ``0.04 s``, ``28.0 s``, ``2 min 05 s``, ``1 h 10 min``; the sign is kept."""
    if not math.isfinite(value):
        return "? s"
    sign, value = ("-" if value < 0 else ""), abs(value)
    if value < 0.995:
        return f"{sign}{value:.2f} s"
    if value < 99.95:
        return f"{sign}{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{sign}{whole // 60} min {whole % 60:02d} s"
    return f"{sign}{whole // 3600} h {whole % 3600 // 60:02d} min"


def lacking(durable: bool, store: str, kind: str) -> str:
    """What is wrong with something that was kept; "" where nothing is."""
    if kind == "weights":
        return "its weights alone"
    if durable:
        return ""
    if not is_durable(store):
        return "in a peer's memory alone"
    return "other nodes' parts of this generation are missing"
