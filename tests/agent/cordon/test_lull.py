from hypothesis import given
from hypothesis import strategies as st

from evacd.cordon.lull import calm
from evacd.facts import Confidence, Notice
from evacd.health import SourceHealth


def health(*names: str, answers: bool = True) -> dict[str, SourceHealth]:
    return {name: SourceHealth(name, answers, 0.0) for name in names}


def notice(confidence: Confidence) -> Notice:
    return Notice("gcp", "preempted", "n", confidence, None, 0.0)


def test_it_is_calm_once_every_source_has_answered() -> None:
    assert not calm(["a", "b"], {}, [])
    assert not calm(["a", "b"], health("a"), [])
    assert calm(["a", "b"], health("a", "b"), [])


def test_a_source_that_is_unknown_is_no_calm() -> None:
    assert not calm(["a", "b"], health("a") | health("b", answers=False), [])


def test_without_sources_there_is_nothing_to_wait_for() -> None:
    assert calm([], {}, [])


def test_advice_alone_keeps_no_node_closed() -> None:
    assert calm(["gcp"], health("gcp"), [notice(Confidence.ADVISORY)])


@given(st.lists(st.sampled_from(Confidence)))
def test_what_could_become_an_order_is_no_calm(confidences: list[Confidence]) -> None:
    notices = [notice(each) for each in confidences]

    assert calm(["gcp"], health("gcp"), notices) == (set(confidences) <= {Confidence.ADVISORY})
