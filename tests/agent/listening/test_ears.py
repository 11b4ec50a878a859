"""One line and one count per notice; how each source is, and for how long."""

from structlog.testing import capture_logs

from evacd.facts import Cancelled, Confidence, Notice, Noticed, Probe, Quiet, Unknown
from evacd.listening import Ears
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


def test_ready_is_when_one_source_has_answered_once() -> None:
    scene = Scene()
    assert scene.ears.waiting == ""  # none is configured

    scene.ears.expect("a")
    scene.ears.expect("b")
    assert "no source has answered yet" in scene.ears.waiting
    scene.ears.hear(Unknown("a", "HTTP 503"))
    assert "a: HTTP 503" in scene.ears.waiting
    scene.ears.hear(Quiet("b"))
    assert scene.ears.waiting == ""
    scene.ears.hear(Unknown("b", "HTTP 503"))
    assert scene.ears.waiting == ""


def test_deaf_is_when_no_source_answers_counted_from_the_last_that_did() -> None:
    scene = Scene()
    assert scene.ears.deaf_seconds(scene.clock.now) == 0.0
    scene.ears.expect("a")
    scene.ears.expect("b")
    scene.clock.now += 5
    assert scene.ears.deaf_seconds(scene.clock.now) == 5.0

    scene.ears.hear(Quiet("a"))
    scene.ears.hear(Unknown("b", "x"))
    scene.clock.now += 10
    assert scene.ears.deaf_seconds(scene.clock.now) == 0.0
    scene.ears.hear(Unknown("a", "x"))
    scene.clock.now += 20

    assert scene.ears.deaf_seconds(scene.clock.now) == 20.0


def test_an_operator_is_no_source_that_could_be_deaf() -> None:
    scene = Scene()
    scene.ears.hear(notice(source="operator"))
    scene.clock.now += 1000

    assert scene.ears.deaf_seconds(scene.clock.now) == 0.0
    assert scene.ears.waiting == ""
    assert scene.ears.shown() == []
