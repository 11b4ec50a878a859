"""What would be lost now, as metrics: the margin of the node, and each unit's own figures.

Here alone a job's name is a label: an alert has to say whose work is at risk. There are as many
units as jobs on the node, and beyond the first `MOST_UNITS` only the node's figures are given.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

# Jobs share a node by the handful.
MOST_UNITS = 64


def of_risk(risk: Mapping[str, Any]) -> Iterator[Metric]:
    """Gauges from what the status shows under ``risk``. All are of the units, by ``unit``.

    The margin of the node itself stands under no unit's name, and so do the bytes of those
    units that are beyond the bound.
    """
    units, others = risk["units"][:MOST_UNITS], risk["units"][MOST_UNITS:]
    yield _gauge(
        "evac_at_risk_bytes",
        "Bytes of the newest staged generation that no durable store holds.",
        {"": sum(one["at_risk_bytes"] for one in others)} if others else {},
        units,
        "at_risk_bytes",
    )
    yield _gauge(
        "evac_at_risk_steps",
        "Training steps since the newest durable generation; absent before the first.",
        {},
        units,
        "at_risk_steps",
    )
    yield _gauge(
        "evac_window_margin_seconds",
        "Seconds of the cloud's window, less the commit reserve, that would be left if the notice "
        "came now; negative: short. Without a unit: of the whole node.",
        {"": risk["margin_seconds"]},
        units,
        "margin_seconds",
    )
    yield _gauge(
        "evac_durable_age_seconds",
        "Seconds since the newest durable generation was staged; absent before the first.",
        {},
        units,
        "durable_age_seconds",
    )


def _gauge(
    name: str,
    about: str,
    node: Mapping[str, float],
    units: list[Mapping[str, Any]],
    figure: str,
) -> Metric:
    family = GaugeMetricFamily(name, about, labels=("unit",))
    for unit, value in (*node.items(), *((one["unit"], one[figure]) for one in units)):
        if value is not None:
            family.add_metric((unit,), value)
    return family
