import itertools

import pytest

from evacd.order import Machine


@pytest.fixture
def machine() -> Machine:
    """A machine whose orders are called o1, o2 and so on."""
    ids = itertools.count(1)
    return Machine(new_id=lambda: f"o{next(ids)}")
