"""Which stores outlive the machines of a job. Pure: the planner asks."""


def is_durable(url: str) -> bool:
    """Whether what is in the store behind *url* is safe for good.

    A peer's memory keeps bytes for as long as that peer lives, and no longer.
    """
    return not url.startswith("evac://")
