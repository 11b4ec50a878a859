"""An incident as people look at it: what happened when, who was saved, how much time was left.

Plain text that holds without colour; what comes from a workload is stripped of control
characters, so that no name or reason can write on the reader's terminal.
"""

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from evac.human import rate as rate_text
from evac.human import seconds as seconds_text
from evac.human import size
from evac.incident.chart import chart
from evac.incident.paint import PAINT, Paint, clean, fitted
from evac.incident.record import Event, Incident
from evac.incident.summary import Ending, Summary, listed, number, summary, text
from evac.store.durability import is_durable

# Wide enough for "departure failed", "commit finished"; other events may be cut.
_EVENT = 16
_LABELS = {
    "departure.announced": "departure told",
    "order.stood_down": "order stood down",
    "choice.refused": "choice unmet",
}
_TIME = 9
_NARROWEST = 68

_COLORS = {Ending.KEPT: "green", Ending.LOST: "red", Ending.TORN: "red", Ending.OPEN: "yellow"}


def render(
    incident: Incident, *, width: int = 80, color: bool = False, running: bool = False
) -> str:
    """The timeline, a chart, what became of each workload, and the verdict.

    Args:
        width: Columns, at least 68.
        color: With ANSI colours; nothing is said by colour alone.
        running: As in `summary`.
    """
    width = max(width, _NARROWEST)
    paint = PAINT[color]
    judged = summary(incident, running=running)
    parts = [_header(incident, judged, width, paint), _timeline(incident, width, paint)]
    if judged.units:
        parts += [chart(judged, width, paint), _outcomes(judged, width, paint)]
    mark, shade = _mark(judged)
    verdict = textwrap.wrap(clean(judged.verdict), width - 2)
    parts.append(paint("\n  ".join([f"{mark} {verdict[0]}", *verdict[1:]]), shade, "bold"))
    return "\n\n".join(parts)


def _mark(judged: Summary) -> tuple[str, str]:
    if judged.whole:
        return "●", "green"
    if not judged.count(Ending.LOST) + judged.count(Ending.TORN):
        return "○", "yellow"
    return "▲" if judged.count(Ending.KEPT) else "✗", "red"


def _header(incident: Incident, judged: Summary, width: int, paint: Paint) -> str:
    began = incident.began.replace("T", " ")[:19] + " UTC"
    title = clean(f"{incident.id} on {incident.node}")
    room = width - len(began) - 2
    first = f"{paint(fitted(title, room).ljust(room), 'bold')}  {paint(began, 'dim')}"
    window = f"{seconds_text(judged.deadline)} to the deadline"
    if abs(judged.deadline - incident.window_seconds) >= 0.05:
        window += f" (at first {seconds_text(incident.window_seconds)})"
    second = clean(f"{incident.source} {incident.kind}, {incident.confidence}: {window}")
    return f"{first}\n{fitted(second, width)}"


# --- the events ---------------------------------------------------------------------------


def _timeline(incident: Incident, width: int, paint: Paint) -> str:
    names = [len(clean(_who(event))) for event in incident.events]
    who_width = min(max([*names, 8]), max(width // 4, 8))
    left = _TIME + 2 + _EVENT + 2 + who_width + 2
    room = width - left
    header = f"{'seconds':>{_TIME}}  {'event':<{_EVENT}}  {'who':<{who_width}}  what"
    lines = [paint(header, "dim")]
    before = None
    for event in incident.events:
        what, tail = _what(event)
        if event.name == "plan.made" and what == before:
            continue
        before = what if event.name == "plan.made" else before
        pieces = textwrap.wrap(clean(what), room) or [""]
        if tail and len(pieces[-1]) + 2 + len(tail) > room:
            pieces.append("")
        if tail:
            pieces[-1] += tail.rjust(room - len(pieces[-1]))
        digits = 3 if abs(event.at) < 9999 else 0
        at = fitted(f"{event.at:+.{digits}f}", _TIME).rjust(_TIME)
        label = fitted(clean(_LABELS.get(event.name, event.name.replace(".", " "))), _EVENT)
        who = fitted(clean(_who(event)), who_width)
        start = f"{paint(at, 'dim')}  {paint(label.ljust(_EVENT), _shade(event))}"
        lines.append(f"{start}  {who.ljust(who_width)}  {pieces[0]}".rstrip())
        lines += [" " * left + piece for piece in pieces[1:]]
    return "\n".join(lines)


def _shade(event: Event) -> str:
    if (
        event.name.endswith((".lost", ".failed", ".died", ".stopped"))
        or event.data.get("ok") is False
    ):
        return "red"
    if event.name in ("flush.finished", "turn.finished", "commit.finished"):
        return "green"
    return "yellow" if event.name.startswith(("notice.", "order.")) else "plain"


def _who(event: Event) -> str:
    data = event.data
    stage = event.name.partition(".")[0]
    if stage in ("notice",):
        return text(data, "source")
    return text(data, "unit") or text(data, "job") or text(data, "name") or "node"


def _what(event: Event) -> tuple[str, str]:
    """What an event says, and its figures, which stand in a column of their own."""
    words = _WORDS.get(event.name)
    if words is not None:
        return words(event.data), _figures(event)
    return ", ".join(f"{key} {value}" for key, value in event.data.items() if key != "unit"), ""


def _figures(event: Event) -> str:
    nbytes = number(event.data, "nbytes")
    if nbytes is None or event.name not in _MOVES or event.data.get("ok") is False:
        return ""
    took = number(event.data, "seconds")
    speed = rate_text(nbytes / took) if took and took > 0 else ""
    return f"{fitted(size(nbytes), 8):>8}  {fitted(speed, 9):>9}"


_MOVES = ("flush.started", "flush.finished", "turn.finished")
_KINDS = {"weights": ", weights alone", "held": ", what survivors hold"}


def _seen(data: Mapping[str, Any]) -> str:
    left = number(data, "window_seconds")
    when = "no usable time" if left is None else f"{seconds_text(left)} left"
    return f"{text(data, 'kind')}, {text(data, 'confidence')}, {when}"


def _given(data: Mapping[str, Any]) -> str:
    told = number(data, "told")
    if told is None:
        return text(data, "confidence")
    return f"{text(data, 'confidence')}, {told:.0f} process{'es' if told != 1 else ''} told"


def _amended(data: Mapping[str, Any]) -> str:
    window = number(data, "window_seconds")
    when = "" if window is None else f", {seconds_text(window)} from the order"
    return f"{text(data, 'confidence')}{when}"


def _planned(data: Mapping[str, Any]) -> str:
    steps = listed(data, "steps")
    late = {text(step, "unit") for step in steps if step.get("overtime") is True}
    gone = {text(item, "unit") for item in listed(data, "given_up")} - late
    lanes = len({text(step, "lane") for step in steps})
    counts = (
        (len(steps) - len(late), "in time"),
        (len(late), "in overtime"),
        (len(gone), "given up"),
    )
    where = f", over {lanes} stores" if lanes > 1 else ""
    said = ", ".join(f"{count} {word}" for count, word in counts if count)
    return f"{said}{where}" if said else "nothing to save"


def _generation(data: Mapping[str, Any]) -> str:
    generation = data.get("generation")
    step = number(generation, "step") if isinstance(generation, dict) else None
    if step is None:
        return ""
    return f"step {step:.0f}{_KINDS.get(text(data, 'kind'), '')}"


def _started(data: Mapping[str, Any]) -> str:
    """With the kind of store: lanes run beside each other, and the commit names it in full."""
    scheme, found, _ = text(data, "lane").partition("://")
    return f"{_generation(data)} to {scheme}" if found else _generation(data)


def _failed(data: Mapping[str, Any]) -> str:
    lane = text(data, "lane")
    return f"{lane}: {_reason(data)}" if lane else _reason(data)


def _stopped(data: Mapping[str, Any]) -> str:
    return f"{_generation(data)}, could not be whole in time"


def _committed(data: Mapping[str, Any]) -> str:
    where = text(data, "store") or "the store"
    if text(data, "kind") == "weights":
        return f"the weights alone, in {where}"
    if not is_durable(where):
        return f"in a peer's memory, {where}"
    if data.get("durable", True) is False:
        return f"this node's part, in {where}"
    return f"whole, in {where}"


def _turn(data: Mapping[str, Any]) -> str:
    seconds = number(data, "seconds")
    return (
        "may flush itself" if seconds is None else f"may flush itself for {seconds_text(seconds)}"
    )


def _turned(data: Mapping[str, Any]) -> str:
    if data.get("ok") is True:
        return "by itself"
    return f"failed: {text(data, 'reason') or 'no reason given'}"


def _closed(data: Mapping[str, Any]) -> str:
    seconds = number(data, "seconds")
    took = "" if seconds is None else f", took {seconds_text(seconds)}"
    return f"no new work lands here{took}"


def _departed(data: Mapping[str, Any]) -> str:
    return f"{text(data, 'name')}: {text(data, 'word')}"


def _not_departed(data: Mapping[str, Any]) -> str:
    return f"{_departed(data)}: {text(data, 'reason')}"


def _chosen(data: Mapping[str, Any]) -> str:
    return f"{_generation(data)}, by {text(data, 'by')}"


def _unmet(data: Mapping[str, Any]) -> str:
    return f"{_chosen(data)}: {_reason(data)}"


def _process(data: Mapping[str, Any]) -> str:
    rank, pid = number(data, "rank"), number(data, "pid")
    parts = [f"rank {rank:.0f}"] if rank is not None else []
    return ", ".join([*parts, f"pid {pid:.0f}"] if pid is not None else parts)


def _reason(data: Mapping[str, Any]) -> str:
    return text(data, "reason")


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "notice.seen": _seen,
    "order.given": _given,
    "order.amended": _amended,
    "order.stood_down": _reason,
    "plan.made": _planned,
    "flush.started": _started,
    "flush.finished": _generation,
    "flush.failed": _failed,
    "flush.stopped": _stopped,
    "flush.lost": _reason,
    "turn.given": _turn,
    "turn.finished": _turned,
    "commit.finished": _committed,
    "cordon.closed": _closed,
    "cordon.failed": _reason,
    "cordon.reopened": lambda _: "new work may land here again",
    "cordon.told": lambda _: "the scheduler shows it",
    "departure.announced": _departed,
    "departure.failed": _not_departed,
    "choice.made": _chosen,
    "choice.followed": _chosen,
    "choice.refused": _unmet,
    "workload.died": _process,
    "workload.joined": _process,
    "report.written": lambda data: text(data, "verdict"),
}


# --- what became of it --------------------------------------------------------------------


def _outcomes(judged: Summary, width: int, paint: Paint) -> str:
    fixed = (8, 9, 8, 11, 11)
    name = max([8, *(len(clean(unit.unit)) for unit in judged.units)])
    name = min(name, width - sum(fixed) - 10)

    def row(cells: tuple[str, ...], *shades: str) -> str:
        outcome, who, *figures = map(fitted, cells, (fixed[0], name, *fixed[1:]))
        right = "  ".join(cell.rjust(n) for cell, n in zip(figures, fixed[1:], strict=True))
        return f"{paint(outcome.ljust(fixed[0]), *shades)}  {who.ljust(name)}  {right}"

    lines = [paint(row(("outcome", "workload", "step", "bytes", "took", "margin left")), "dim")]
    for unit in judged.units:
        cells = (
            unit.ending.value,
            clean(unit.unit),
            "-" if unit.step is None else str(unit.step),
            size(unit.nbytes) if unit.nbytes else "-",
            "-" if unit.seconds is None else seconds_text(unit.seconds),
            "-" if unit.margin is None else seconds_text(unit.margin),
        )
        lines.append(row(cells, _COLORS[unit.ending], "bold"))
        lines += [" " * 10 + piece for piece in textwrap.wrap(clean(unit.reason), width - 10)]
    return "\n".join(lines)
