"""A scenario: what is read from TOML, what is refused, and that it is played in time."""

import asyncio
import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evac.errors import ConfigError
from evacd.notice.simulate.faults import Fault, Faults
from evacd.notice.simulate.scenario import Scenario, Step, play, read

ACTIONS = ("clear", "preempt")


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def utc(self) -> datetime:
        return datetime.fromtimestamp(self.monotonic(), UTC)


def test_a_timeline_is_read_in_order_of_time() -> None:
    text = """
    faults = ["slow=2,first=1"]
    [[at]]
    seconds = 9
    faults = []
    [[at]]
    seconds = 5.5
    action = "preempt"
    faults = ["html"]
    """

    assert read(text, where="x.toml", actions=ACTIONS) == Scenario(
        steps=(Step(5.5, "preempt", (Fault("html"),)), Step(9.0, "", ())),
        faults=(Fault("slow", 2, first=1),),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("at = 1", "x.toml: at: expected entries that begin with [[at]]"),
        ("at = [1]", "x.toml: at[1]: expected an entry that begins with [[at]]"),
        ("when = 1", "x.toml: when: expected faults or [[at]], and nothing else"),
        ("[[at]]", "x.toml: at[1].seconds: expected a number >= 0, not None"),
        ("[[at]]\nseconds = -1", "x.toml: at[1].seconds: expected a number >= 0, not -1"),
        ("[[at]]\nseconds = nan", "x.toml: at[1].seconds: expected a number >= 0, not nan"),
        ("[[at]]\nseconds = true", "x.toml: at[1].seconds: expected a number >= 0, not True"),
        ("[[at]]\nseconds = 1", "x.toml: at[1]: expected an action or faults"),
        (
            "[[at]]\nseconds = 1\nact = 'clear'",
            "x.toml: at[1].act: expected seconds, action, faults, and nothing else",
        ),
        (
            "[[at]]\nseconds = 1\naction = 'explode'",
            "x.toml: at[1].action: expected one of clear, preempt, not 'explode'",
        ),
        ("[[at]]\nseconds = 1\naction = 7", "x.toml: at[1].action: expected one of"),
        ("faults = 'html'", 'x.toml: faults: expected a list such as ["status=503,first=3"]'),
        ("faults = ['flood']", "x.toml: faults: expected a kind of fault"),
        ("[[at]]\nseconds = 1\nfaults = ['slow']", "x.toml: at[1].faults: expected slow=NUMBER"),
        ("[[at]", "x.toml: scenario: expected TOML"),
    ],
)
def test_what_is_wrong_says_where_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(text, where="x.toml", actions=ACTIONS)

    assert str(raised.value).startswith(message)


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    with contextlib.suppress(ConfigError):
        read(text, where="x.toml", actions=ACTIONS)


@pytest.mark.looptime
async def test_it_happens_when_it_was_said_to() -> None:
    clock, happened = LoopClock(), list[tuple[float, str, int]]()
    faults = Faults(clock=clock)
    scenario = Scenario(
        steps=(
            Step(5.0, "preempt"),
            Step(5.0, "clear", (Fault("html"), Fault("reset"))),
            Step(7.5, "preempt", ()),
        ),
        faults=(Fault("empty"),),
    )

    await play(
        scenario,
        faults,
        act=lambda action: happened.append((clock.monotonic(), action, len(faults.faults))),
        clock=clock,
    )

    assert happened == [(5.0, "preempt", 1), (5.0, "clear", 2), (7.5, "preempt", 0)]
