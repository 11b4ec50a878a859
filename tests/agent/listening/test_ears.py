"""One line and one count per notice; how each source is, and for how long."""

from structlog.testing import capture_logs

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.health import Deaf
from evacd.listening import Ears
from evacd.report.vitals import Pulse, Vitals, healthy, ready
from tests.agent.listening.scripted import Count
from tests.agent.notice.hearing import MovedClock


class Scene:
    def __init__(self) -> None:
        self.clock = MovedClock()
        self.acted: list[Probe] = []
        self.count = Count()
        self.ears = Ears(self.acted.append, self.clock, self.count)


def notice(id: str = "x", source: str = "a", deadline: float | None = 1030.0) -> Noticed:
    return Noticed(Notice(source, "preempted", id, Confidence.CERTAIN, deadline, 1000.0))


def test_sixty_repeats_of_a_notice_are_one_line_and_one_count() -> None:
    scene = Scene()

    with capture_logs() as logs:
        for _ in range(60):
            scene.ears.hear(notice())

    assert [entry["event"] for entry in logs] == ["notice.heard"]
    assert logs[0]["window_seconds"] == 30.0
    assert scene.count.notices == [notice().notice]
    assert scene.acted == [notice()] * 60


def test_two_notices_are_two_lines_even_where_the_second_changes_nothing() -> None:
    scene = Scene()

    with capture_logs() as logs:
        scene.ears.hear(notice("x"))
        scene.ears.hear(notice("y", deadline=None))

    assert [(entry["id"], entry["window_seconds"]) for entry in logs] == [("x", 30.0), ("y", None)]


def test_a_notice_that_was_taken_back_and_comes_again_is_news() -> None:
    scene = Scene()

    with capture_logs() as logs:
        for probe in (notice(), Cancelled("a", "x"), Cancelled("a", "x"), notice()):
            scene.ears.hear(probe)

    events = [entry["event"] for entry in logs]
    assert events == ["notice.heard", "notice.cancelled", "notice.heard"]
    assert scene.ears.standing("a") == (notice().notice,)
    assert scene.ears.standing("b") == ()


def test_a_source_that_degrades_says_so_once_and_once_that_it_is_back() -> None:
    scene = Scene()

    with capture_logs() as logs:
        scene.ears.hear(Quiet("a"))
        for _ in range(5):
            scene.ears.hear(Unknown("a", "HTTP 503", "wait"))
        scene.ears.hear(Quiet("a"))

    assert [entry["event"] for entry in logs] == ["source.degraded", "source.recovered"]
    assert (logs[0]["reason"], logs[0]["cure"]) == ("HTTP 503", "wait")


def test_status_shows_each_source_since_when_why_and_what_to_do() -> None:
    scene = Scene()
    scene.ears.expect("a")
    scene.ears.expect("b", lambda: "no delay lock")
    scene.ears.expect("c")
    scene.ears.hear(Unknown("a", "HTTP 503", "wait"))
    scene.ears.hear(Quiet("b"))
    scene.clock.now += 7

    shown = {each["source"]: each for each in scene.ears.shown()}

    assert list(shown) == ["a", "b", "c"]
    assert (shown["a"]["answers"], shown["a"]["reason"], shown["a"]["cure"]) == (
        False,
        "HTTP 503",
        "wait",
    )
    assert (shown["a"]["seconds"], shown["a"]["unknowns"]) == (7.0, 1)
    assert (shown["b"]["answers"], shown["b"]["note"]) == (True, "no delay lock")
    assert (shown["c"]["answers"], shown["c"]["reason"]) == (False, "no answer yet")


def test_ready_is_when_all_that_can_tell_the_end_for_certain_have_answered_once() -> None:
    scene = Scene()
    assert scene.ears.waiting == ""  # none is configured

    for name in ("gcp/preempted", "gcp/stop", "file"):
        scene.ears.expect(name)
    scene.ears.hear(Quiet("gcp/stop"))
    scene.ears.hear(Unknown("gcp/preempted", "HTTP 404", "set hostNetwork"))
    assert "gcp/preempted: HTTP 404; set hostNetwork" in scene.ears.waiting
    assert "file: no answer yet" in scene.ears.waiting
    assert "gcp/stop" not in scene.ears.waiting
    scene.ears.hear(Quiet("file"))
    assert "gcp/preempted: HTTP 404" in scene.ears.waiting
    scene.ears.hear(Quiet("gcp/preempted"))
    assert scene.ears.waiting == ""
    scene.ears.hear(Unknown("gcp/preempted", "HTTP 503"))
    assert scene.ears.waiting == ""


def test_where_nothing_can_tell_the_end_for_certain_one_source_of_any_kind_is_enough() -> None:
    scene = Scene()
    scene.ears.expect("a")
    scene.ears.expect("b")
    assert "a: no answer yet" in scene.ears.waiting

    scene.ears.hear(Unknown("a", "HTTP 503"))
    assert "a: HTTP 503" in scene.ears.waiting
    scene.ears.hear(Quiet("b"))

    assert scene.ears.waiting == ""


def test_one_deaf_source_that_counts_is_not_hidden_by_others_that_answer() -> None:
    scene = Scene()
    scene.ears.expect("gcp/preempted")
    scene.ears.expect("gcp/stop")
    scene.ears.expect("file")
    scene.clock.now += 5
    assert [each.source for each in scene.ears.deaf()] == ["gcp/preempted", "file"]

    scene.ears.hear(Quiet("file"))
    scene.ears.hear(Unknown("gcp/preempted", "HTTP 404", "set hostNetwork"))
    scene.ears.hear(Unknown("gcp/stop", "HTTP 503"))
    scene.clock.now += 20

    assert scene.ears.deaf() == (Deaf("gcp/preempted", 20.0, "HTTP 404", "set hostNetwork"),)


def test_a_source_that_came_late_is_deaf_from_when_it_came() -> None:
    scene = Scene()
    scene.clock.now += 1000
    scene.ears.expect("aws/spot")
    scene.clock.now += 7

    assert [each.seconds for each in scene.ears.deaf()] == [7.0]


def test_where_none_counts_deaf_is_when_no_source_at_all_answers() -> None:
    scene = Scene()
    assert scene.ears.deaf() == ()
    scene.ears.expect("a")
    scene.ears.expect("b")
    scene.ears.hear(Quiet("a"))
    scene.ears.hear(Unknown("b", "x"))
    scene.clock.now += 10
    assert scene.ears.deaf() == ()

    scene.ears.hear(Unknown("a", "x"))
    scene.clock.now += 20

    assert [(each.source, each.seconds) for each in scene.ears.deaf()] == [("a", 20.0), ("b", 30.0)]


def test_what_is_inferred_says_nothing_of_how_its_source_is() -> None:
    scene = Scene()
    scene.ears.expect("shutdown")
    scene.ears.hear(Unknown("shutdown", "D-Bus is down"))

    with capture_logs() as logs:
        scene.ears.infer(notice(source="shutdown").notice)

    assert [entry["event"] for entry in logs] == ["notice.heard"]
    assert scene.acted[-1] == notice(source="shutdown")
    assert scene.ears.standing("shutdown") == (notice(source="shutdown").notice,)
    assert not scene.ears.health["shutdown"].answers
    assert "D-Bus is down" in scene.ears.waiting


def test_an_operator_is_no_source_that_could_be_deaf() -> None:
    scene = Scene()
    scene.ears.hear(notice(source="operator"))
    scene.clock.now += 1000

    assert scene.ears.deaf() == ()
    assert scene.ears.waiting == ""
    assert scene.ears.shown() == []


def test_silence_ends_with_any_word_and_not_with_a_good_one_alone() -> None:
    scene = Scene()
    scene.ears.expect("a")
    scene.clock.now += 100.0
    assert scene.ears.silence("a") == 100.0

    scene.ears.hear(Unknown("a", "refused"))

    assert scene.ears.silence("a") == 0.0
    scene.clock.now += 30.0
    assert scene.ears.silence("a") == 30.0


def test_an_api_server_that_is_down_for_ten_minutes_restarts_no_daemon() -> None:
    """The kubelet of every node asks the same page: what is staged would be lost on all of them."""
    scene = Scene()
    for source in ("node", "aws/spot"):
        scene.ears.expect(source)
        scene.ears.hear(Quiet(source))
    for _ in range(60):
        scene.clock.now += 10.0
        scene.ears.hear(Unknown("node", "no connection", "is the API server up?"))
    vitals = Vitals(Pulse(scene.clock.now), deaf=scene.ears.deaf(), sockets=True)

    assert healthy(vitals, now=scene.clock.now).good
    assert "node: no answer for 590 s" in ready(vitals, deaf_limit=120.0).parts["sources"]
