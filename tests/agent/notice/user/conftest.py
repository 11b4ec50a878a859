import json
from typing import Any

import pytest

from tests.agent.notice.hearing import MovedClock


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


def entry(**fields: Any) -> dict[str, Any]:
    """One notice as a user writes it."""
    return {
        "id": "block-7",
        "kind": "capacity-block-end",
        "confidence": "planned",
        "deadline": "1970-01-01T01:00:00Z",
        "detail": "ends",
        **fields,
    }


def document(*notices: object) -> bytes:
    """What a user writes."""
    return json.dumps({"notices": notices}).encode()
