"""Plain tables for people: aligned columns, units that are read at a glance."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evac.human import lacking, rate, seconds, size


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: str = "") -> str:
    """Columns as wide as their widest cell, two spaces apart."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def render_status(status: Mapping[str, Any]) -> str:
    """What `evac status` prints."""
    memory = status["memory"]
    parts = [
        headline(status),
        f"memory   {size(memory['used'])} of {size(memory['budget'])} in slots",
    ]
    parts += [f"store    {_lane(lane)}" for lane in status.get("lanes", ())]
    if peer := status.get("peer"):
        parts.append(f"peer     {_peer(peer)}")
    if cloud := status.get("cloud"):
        cure = f"; {cloud['cure']}" if cloud["cure"] else ""
        parts.append(f"cloud    {cloud['cloud'] or 'none heard'}  {cloud['how']}{cure}")
    if status.get("risk"):
        parts.append(f"risk     {_risk(status['risk'])}")
    parts += [f"pinned   {_pin(pin)}" for pin in status.get("pins", ())]
    parts += [f"interval {_interval(interval)}" for interval in status.get("intervals", ())]
    sources = status.get("sources", ())
    widest = max((len(source["source"]) for source in sources), default=0)
    parts += [f"source   {_source(source, widest)}" for source in sources]
    parts += [f"notice   {_notice(notice)}" for notice in status.get("notices", ())]
    parts += [f"cordon   {line}" for each in status.get("cordons", ()) if (line := _cordon(each))]
    if (http := status.get("http")) and http["reason"]:
        parts.append(f"http     NOT SERVED: {http['reason']}")
    workloads = sorted(
        status["workloads"], key=lambda one: (-one["priority"], one["unit"], one["rank"])
    )
    if workloads:
        header = ("WORKLOAD", "RANK", "PRIORITY", "MODE", "PID", "STAGED", "SLOTS", "BYTES")
        parts += ["", table(header, (_workload(one) for one in workloads))]
    else:
        parts += ["", "nobody is on board"]
    if status.get("outcomes"):
        outcomes = ("OUTCOME", "WORKLOAD", "WHAT")
        parts += ["", table(outcomes, (_outcome(one) for one in status["outcomes"]))]
    return "\n".join(parts)


def _pin(pin: Mapping[str, Any]) -> str:
    """What the nodes of a job have agreed on."""
    what = f"{pin['unit']} step {pin['step']}: what its nodes agreed on when one had to leave"
    return f"{what}{', kept until they resume' if pin['held'] else ', and not complete here'}"


def _interval(interval: Mapping[str, Any]) -> str:
    """How often a job stages, and what that is worth."""
    costs = ", ".join(
        f"{what} {seconds(interval[key])}"
        for what, key in (
            ("stall", "stall"),
            ("restart", "restart"),
            ("reclaimed every", "between"),
        )
    )
    stalls = f"{100 * interval['shares']['stalls']:.1f} % of the time stalled"
    verdict = interval["verdict"]
    if interval["net_consumer"]:
        verdict = f"NET CONSUMER{verdict.removeprefix('a net consumer')}"
    every = seconds(interval["interval"])
    return f"{interval['unit']} stages every {every}: {costs}; {stalls}; {verdict}"


def _lane(lane: Mapping[str, Any]) -> str:
    """A store, how fast it is, and what moves there."""
    said = [f"{lane['store']}  {rate(lane['bytes_per_second'])}"]
    if not lane.get("measured", True):
        said.append("not measured yet")
    if not lane.get("durable", True):
        said.append("memory of a peer, not durable")
    if moving := lane.get("moving"):
        what = f"step {moving['step']}" if moving["step"] is not None else "its own flush"
        left = f", {size(moving['left_bytes'])} left" if moving["left_bytes"] else ""
        said.append(f"{moving['unit']} {what}{left}")
    return "; ".join(said)


def _peer(peer: Mapping[str, Any]) -> str:
    """What is kept here for other nodes."""
    if peer.get("reason"):
        return f"NOT SERVED: {peer['reason']}"
    what = f"{size(peer['used'])} of {size(peer['budget'])} kept for other nodes"
    jobs = ", ".join(f"{job['prefix'] or '.'} {size(job['nbytes'])}" for job in peer["jobs"])
    new = ""
    if peer["leaving"]:
        new = "; takes nothing new: this node leaves"
        if peer["used"]:
            new += ", and what it keeps goes with it, unless a durable store has it"
    return f"{what}{f' ({jobs})' if jobs else ''}{new}"


def headline(status: Mapping[str, Any]) -> str:
    """Who it is, and whether it leaves."""
    return f"evacd {status['version']} on {status['node']}: {_leaves(status.get('order'))}"


def _leaves(order: Mapping[str, Any] | None) -> str:
    if order is None:
        return "no order; listening"
    left = order["seconds_left"]
    when = f"{left:.0f} s left" if left > 0 else f"{-left:.0f} s past the deadline"
    return f"LEAVING ({order['source']} {order['kind']}, {order['confidence']}), {when}"


def _risk(risk: Mapping[str, Any]) -> str:
    """What a notice would mean now."""
    window, margin = seconds(risk["window_seconds"]), seconds(abs(risk["margin_seconds"]))
    lost = ", ".join(risk["lost"])
    what = f"LOST would be {lost}" if lost else "nothing would be lost"
    if weights := [one["unit"] for one in risk.get("units", ()) if one.get("weights_only")]:
        what += f", only the weights saved of {', '.join(weights)}"
    spare = "to spare" if risk["margin_seconds"] >= 0 else "short"
    return f"in {window} {what}, {margin} {spare}; {size(risk['at_risk_bytes'])} not durable yet"


def _source(source: Mapping[str, Any], width: int) -> str:
    name = source["source"].ljust(width)
    if source["answers"]:
        note = f"; {source['note']}" if source.get("note") else ""
        return f"{name}  answers{note}"
    cure = f"; {source['cure']}" if source["cure"] else ""
    return f"{name}  NO ANSWER for {source['seconds']:.0f} s: {source['reason']}{cure}"


def _notice(notice: Mapping[str, Any]) -> str:
    """What was announced, and what follows from it."""
    left, starts = notice["seconds_left"], notice["starts_in"]
    when = "at a time not told" if left is None else f"in {seconds(max(left, 0.0))}"
    if left is not None and left < 0:
        when = f"{seconds(-left)} ago"
    if starts is None:
        what = "only advice"
    elif starts == 0:
        what = "the order runs"
    else:
        what = f"the order starts in {seconds(starts)}"
    return f"{notice['source']} {notice['kind']}, {notice['confidence']}, {when}; {what}"


def _cordon(one: Mapping[str, Any]) -> str:
    """How a cordon stands; "" where it is open and nothing is wrong."""
    closed, reason = one["wished"] == "closed", one["reason"]
    if one["done"] and not reason:
        state = "told" if one["tells"] else "closed" if one["closes"] else "left to another handler"
        return f"{one['name']}  {state}" if closed else ""
    doing = ("closed" if closed else "opened") if not one["tells"] else "told"
    state = doing if one["done"] else f"NOT {doing.upper()}"
    more = "; asked again" if one["again"] else ""
    return f"{one['name']}  {state}: {reason}{more}" if reason else f"{one['name']}  {state} yet"


def _workload(one: Mapping[str, Any]) -> tuple[str, ...]:
    complete = [slot for slot in one["slots"] if slot["state"] == "complete"]
    newest = max(complete, key=lambda slot: (slot["incarnation"], slot["step"]), default=None)
    return (
        one["unit"],
        f"{one['rank']}/{one['world']}",
        str(one["priority"]),
        one["mode"],
        str(one["pid"]) if one["alive"] else f"{one['pid']} (dead)",
        f"step {newest['step']}" if newest else "-",
        f"{len(complete)}/{len(one['slots'])}" if one["slots"] else "-",
        size(newest["nbytes"]) if newest else "-",
    )


def _outcome(one: Mapping[str, Any]) -> tuple[str, ...]:
    if not one["kept"]:
        return ("LOST", one["unit"], one["reason"])
    generation = one["generation"]
    what = f"step {generation['step']}" if generation else "its own flush"
    lacks = lacking(one["durable"], one.get("store", ""), one.get("kind", "full"))
    part = f", {lacks}" if lacks else ""
    if generation and not one["nbytes"] and not one["seconds"]:
        facts = [size(one["already"])] if one.get("already") else []
        facts += [f"in {one['store']}"] if one.get("store") else []
        where = f" ({', '.join(facts)})" if facts else ""
        return ("saved", one["unit"], f"{what} was durable already{where}{part}")
    return (
        "saved",
        one["unit"],
        f"{what}, {size(one['nbytes'])} in {one['seconds']:.2f} s{part}",
    )
