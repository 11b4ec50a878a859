"""What `evac status` prints of the sources, the cloud and the pages."""

from collections.abc import Mapping
from typing import Any

from evac.interval import Costs, Interval
from evac.show import render_status

STATUS: Mapping[str, Any] = {
    "version": "1",
    "node": "n",
    "memory": {"used": 0, "budget": 1},
    "workloads": [],
}


def source(**more: object) -> Mapping[str, Any]:
    return {
        "source": "aws/spot",
        "answers": True,
        "seconds": 7.0,
        "reason": "",
        "cure": "",
        "note": "",
        **more,
    }


def shown(**more: object) -> list[str]:
    return render_status({**STATUS, **more}).splitlines()


def test_the_cloud_is_shown_with_how_it_was_found() -> None:
    lines = shown(cloud={"cloud": "aws", "how": "detected: DMI", "cure": ""})

    assert "cloud    aws  detected: DMI" in lines


def test_each_store_is_shown_with_its_rate_and_what_moves_there() -> None:
    lane = {"store": "s3://b", "bytes_per_second": 2e8, "measured": True, "durable": True}
    moving = {"unit": "alice/gpt", "step": 9, "left_bytes": 3_000_000_000}
    peer = {**lane, "store": "evac://p:7000", "measured": False, "durable": False}

    lines = shown(lanes=[{**lane, "moving": moving}, {**peer, "moving": None}])

    assert "store    s3://b  200 MB/s; alice/gpt step 9, 3.00 GB left" in lines
    assert (
        "store    evac://p:7000  200 MB/s; not measured yet; memory of a peer, not durable" in lines
    )


def test_a_jobs_interval_is_shown_with_what_it_follows_from_and_what_it_is_worth() -> None:
    good = Interval(Costs(0.2, 300.0, 3600.0), 40.0, 0.01)
    bad = Interval(Costs(2.0, 900.0, 600.0), 200.0, 0.01)

    lines = shown(
        intervals=[
            {"unit": unit, **one.document(), "verdict": one.verdict()}
            for unit, one in (("me/gpt", good), ("me/bad", bad))
        ]
    )

    (first, second) = [line for line in lines if line.startswith("interval ")]
    assert first.startswith(
        "interval me/gpt stages every 40.0 s: stall 0.20 s, restart 5 min 00 s, "
        "reclaimed every 1 h 00 min; 0.5 % of the time stalled; of 100 GPU hours 90.6 train"
    )
    assert (
        "1.0 % of the time stalled; NET CONSUMER of GPU hours: reclaimed every 10 min 00 s"
        in second
    )


def test_an_unknown_cloud_is_shown_with_what_to_do() -> None:
    lines = shown(cloud={"cloud": "", "how": "nobody answers", "cure": "say --cloud"})

    assert "cloud    none heard  nobody answers; say --cloud" in lines


def test_a_source_is_shown_with_what_is_wrong_and_what_to_do() -> None:
    lines = shown(
        sources=[
            source(),
            source(source="shutdown", note="no delay lock"),
            source(source="gcp/stop", answers=False, reason="HTTP 503", cure="wait"),
        ]
    )

    assert "source   aws/spot  answers" in lines
    assert "source   shutdown  answers; no delay lock" in lines
    assert "source   gcp/stop  NO ANSWER for 7 s: HTTP 503; wait" in lines


def test_sources_are_columns() -> None:
    lines = shown(sources=[source(), source(source="aws/maintenance", answers=False)])

    told = [line for line in lines if line.startswith("source")]
    assert len({line.index(word) for line, word in zip(told, ("answers", "NO"), strict=True)}) == 1


def test_what_was_announced_is_shown_with_when_and_what_follows() -> None:
    notice = {
        "source": "aws/maintenance",
        "kind": "system-reboot",
        "confidence": "planned",
        "seconds_left": 11_100.0,
        "starts_in": 7_200.0,
    }
    advice = {**notice, "source": "aws/rebalance", "kind": "rebalance", "confidence": "advisory"}
    going = {**notice, "source": "aws/spot", "kind": "terminate", "confidence": "certain"}
    lines = shown(
        notices=[
            {**going, "seconds_left": -5.0, "starts_in": 0.0},
            notice,
            {**advice, "seconds_left": None, "starts_in": None},
        ]
    )

    assert [line for line in lines if line.startswith("notice")] == [
        "notice   aws/spot terminate, certain, 5.0 s ago; the order runs",
        "notice   aws/maintenance system-reboot, planned, in 3 h 05 min;"
        " the order starts in 2 h 00 min",
        "notice   aws/rebalance rebalance, advisory, at a time not told; only advice",
    ]


def test_pages_are_mentioned_only_where_they_are_missing() -> None:
    assert "http     NOT SERVED: port 1: in use" in shown(
        http={"url": "", "reason": "port 1: in use"}
    )
    for silent in ({"url": "http://x", "reason": ""}, {"url": "", "reason": ""}):
        assert not [line for line in shown(http=silent) if line.startswith("http")]


def test_the_status_of_an_older_daemon_is_still_shown() -> None:
    old = {"source": "gcp", "answers": True, "seconds": 1.0, "reason": "", "cure": ""}

    assert "source   gcp  answers" in shown(sources=[old])


def cordon(**more: object) -> Mapping[str, Any]:
    names = {"name": "kubernetes", "closes": True, "tells": False, "wished": "closed"}
    return {**names, "done": True, "again": False, "reason": "", **more}


def test_a_cordon_is_shown_with_what_keeps_it_from_being_closed() -> None:
    telling = {"name": "kubernetes-telling", "closes": False, "tells": True}
    lines = shown(
        cordons=[
            cordon(),
            cordon(**telling),
            cordon(**telling, done=False, again=True, reason="condition: no answer"),
            cordon(done=False, reason="cordon: HTTP 403"),
            cordon(done=False),
            cordon(closes=False),
            cordon(reason="1 pods not evicted"),
            cordon(wished="open", done=False, again=True, reason="uncordon: no answer"),
        ]
    )

    assert [line.removeprefix("cordon   ") for line in lines if line.startswith("cordon")] == [
        "kubernetes  closed",
        "kubernetes-telling  told",
        "kubernetes-telling  NOT TOLD: condition: no answer; asked again",
        "kubernetes  NOT CLOSED: cordon: HTTP 403",
        "kubernetes  NOT CLOSED yet",
        "kubernetes  left to another handler",
        "kubernetes  closed: 1 pods not evicted",
        "kubernetes  NOT OPENED: uncordon: no answer; asked again",
    ]


def test_a_cordon_that_is_open_is_not_shown() -> None:
    assert not [line for line in shown(cordons=[cordon(wished="open")]) if "cordon" in line]
