"""The window as a picture: one bar per workload, and the deadline across them."""

from dataclasses import dataclass

from evac.human import seconds as seconds_text
from evac.incident.paint import Paint, clean, fitted
from evac.incident.summary import Summary, UnitSummary

_KEPT, _LOST, _DEADLINE, _ROW = "█", "░", "│", "·"
_SHADES = {_KEPT: "green", _LOST: "red", _DEADLINE: "yellow", _ROW: "dim"}


def chart(judged: Summary, width: int, paint: Paint) -> str:
    """Bars over time, up to the deadline, or to the end of the last try in overtime."""
    name = min(max(len(clean(unit.unit)) for unit in judged.units), width // 4)
    left = " " * (name + 2)
    scale = _Scale.over(judged, width - len(left))
    lines = []
    marks: set[str] = set()
    for unit in judged.units:
        row = [_ROW] * scale.cells
        for start, end, mark in _bars(unit, scale):
            row[start:end] = mark * (end - start)
            marks.add(mark)
        # Across the bars, so that it shows how much of one lies in overtime; a bar that is no
        # wider than the line stays.
        deadline = scale.cell(judged.deadline)
        if row[deadline] == _ROW or row[deadline] in row[max(deadline - 1, 0) : deadline]:
            row[deadline] = _DEADLINE
        bar = "".join(paint(cell, _SHADES[cell]) for cell in row)
        lines.append(f"{fitted(clean(unit.unit), name).ljust(name)}  {bar}")
    legend = ((_KEPT, "kept"), (_LOST, "not kept"), (_DEADLINE, "deadline"))
    shown = [f"{mark} {word}" for mark, word in legend if mark in marks or mark == _DEADLINE]
    lines.append(left + paint(_axis(judged.deadline, scale), "dim"))
    lines.append(left + paint("   ".join(shown), "dim"))
    return "\n".join(lines)


@dataclass(frozen=True)
class _Scale:
    """Seconds since the notice to cells; never empty."""

    start: float
    end: float
    cells: int

    @classmethod
    def over(cls, judged: Summary, cells: int) -> "_Scale":
        tries = [one for unit in judged.units for one in unit.tries]
        ends = [one.ended for one in tries if one.ended is not None]
        end = max([judged.deadline, *ends, *(one.started for one in tries), 0.001])
        first = min((one.started for one in tries), default=0.0)
        # A planned order waits for most of its window; that wait is not worth the width.
        return cls(first if end / 2 < first < end else 0.0, end, cells)

    def cell(self, at: float) -> int:
        share = (at - self.start) / (self.end - self.start)
        return min(max(int(share * self.cells), 0), self.cells - 1)


def _bars(unit: UnitSummary, scale: _Scale) -> list[tuple[int, int, str]]:
    """Start, end and mark of each try, at least a cell wide.

    An open end reaches as far as the picture: nobody wrote down where it ended.
    """
    bars = []
    for one in unit.tries:
        start = scale.cell(one.started)
        end = scale.cell(scale.end if one.ended is None else one.ended)
        bars.append((start, max(end, start + 1), _KEPT if one.kept else _LOST))
    return bars


def _axis(deadline: float, scale: _Scale) -> str:
    """The start at the left, the deadline's time below it, the end where that is later."""
    axis = [" "] * scale.cells

    def put(label: str, at: int) -> None:
        start = max(min(at, scale.cells - len(label)), 0)
        if not "".join(axis[max(start - 1, 0) : start + len(label) + 1]).strip():
            axis[start : start + len(label)] = label

    label = seconds_text(deadline)
    put(label, scale.cell(deadline) - len(label) // 2)
    put(seconds_text(scale.start) if scale.start else "0 s", 0)
    if scale.end > deadline:
        put(seconds_text(scale.end), scale.cells)
    return "".join(axis).rstrip()
