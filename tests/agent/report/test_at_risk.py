"""What would be lost now, as Prometheus reads it."""

from typing import Any

from prometheus_client.core import Metric

from evacd.report.at_risk import MOST_UNITS, of_risk


def unit(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "unit": name,
        "at_risk_bytes": 40,
        "at_risk_steps": 20,
        "margin_seconds": 3.5,
        "durable_age_seconds": 61.0,
    } | changes


def values(risk: dict[str, Any]) -> dict[str, dict[str, float]]:
    def of(metric: Metric) -> dict[str, float]:
        return {sample.labels["unit"]: sample.value for sample in metric.samples}

    return {metric.name: of(metric) for metric in of_risk(risk)}


def risk(*units: dict[str, Any], margin: float = 2.0) -> dict[str, Any]:
    total = sum(one["at_risk_bytes"] for one in units)
    return {"units": list(units), "margin_seconds": margin, "at_risk_bytes": total}


def test_each_unit_has_its_figures_and_the_node_its_margin() -> None:
    assert values(risk(unit("a/job"), unit("b/job", margin_seconds=2.0))) == {
        "evac_at_risk_bytes": {"a/job": 40, "b/job": 40},
        "evac_at_risk_steps": {"a/job": 20, "b/job": 20},
        "evac_window_margin_seconds": {"": 2.0, "a/job": 3.5, "b/job": 2.0},
        "evac_durable_age_seconds": {"a/job": 61.0, "b/job": 61.0},
    }


def test_what_nobody_knows_yet_is_absent() -> None:
    found = values(
        risk(unit("a/job", at_risk_steps=None, durable_age_seconds=None, margin_seconds=None))
    )

    assert found["evac_at_risk_steps"] == {}
    assert found["evac_durable_age_seconds"] == {}
    assert found["evac_window_margin_seconds"] == {"": 2.0}


def test_the_number_of_series_has_a_bound() -> None:
    found = values(risk(*(unit(f"a/job-{i}") for i in range(1000))))

    assert len(found["evac_at_risk_steps"]) == MOST_UNITS
    assert sum(found["evac_at_risk_bytes"].values()) == 40_000


def test_an_empty_node_has_a_margin_and_nothing_at_risk() -> None:
    found = values(risk(margin=28.0))

    assert found["evac_window_margin_seconds"] == {"": 28.0}
    assert found["evac_at_risk_bytes"] == {}
