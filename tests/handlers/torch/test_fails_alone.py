"""What fails on one rank alone, before a layout is agreed on and after: no other one waits for it in vain."""

import json
from pathlib import Path
from typing import Any

from tests.handlers.torch import ranks
from tests.handlers.torch.fakes import FakeClient
from tests.handlers.torch.training import Run

# Of rank 1, by step; the first stage that fails nowhere makes the layout.
FAILS: dict[int, dict[str, Any]] = {
    1: {"state": True},
    2: {"samples": -1},
    3: {"epoch": "first"},
    5: {"state": True},
    6: {"samples": "none"},
}
STEPS = 7


class Failing:
    """Has no state at some steps."""

    fails = False

    def state_dict(self) -> dict[str, int]:
        if self.fails:
            raise ValueError("not now")
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def train(rank: int, folder: str) -> None:
    client, run, one = FakeClient(["file:///x"]), Run(rank=rank, ddp=True), Failing()
    saver = run.saver(client=client.as_client(), extra={"one": one})
    staged = []
    for step in range(1, STEPS + 1):
        run.train()  # with the other rank
        given = FAILS.get(step, {}) if rank == 1 else {}
        one.fails = given.get("state", False)
        told = {key: value for key, value in given.items() if key != "state"}
        if saver.step(step, **told):
            staged.append(step)
            client.free(client.kept[-1][0])
    saver.close()
    Path(folder, str(rank)).write_text(json.dumps([staged, saver.stats.failed]))


def test_the_other_ranks_go_on_and_stage_what_they_can(tmp_path: Path) -> None:
    ranks.run(2, train, str(tmp_path))
    one, other = (json.loads((tmp_path / str(rank)).read_text()) for rank in range(2))
    assert one == [[2, 3, 4, 5, 6, 7], 0]
    assert other == [[2, 3, 4, 6, 7], 4]
