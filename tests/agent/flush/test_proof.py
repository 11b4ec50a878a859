"""A node counts as one that can save from the first bytes on that got out, and not before."""

from evacd.flush.proof import Proof


def test_it_is_unproven_until_some_durable_store_took_bytes() -> None:
    proof = Proof(["file:///a", "s3://b"])
    assert set(proof.missing) == {"file:///a", "s3://b"}

    assert proof.failed("file:///a", "no credentials")
    assert not proof.failed("file:///a", "no credentials"), "told twice"
    assert proof.missing["file:///a"] == "no credentials"
    proof.worked("s3://b")

    assert not proof.missing


def test_a_second_store_that_fails_is_told_and_keeps_nobody_from_being_ready() -> None:
    proof = Proof(["file:///a", "s3://b"])
    proof.worked("file:///a")

    assert proof.failed("s3://b", "HTTP 503")
    assert not proof.failed("s3://b", "HTTP 503")
    assert not proof.failed("file:///a", "disk full"), "it once worked"
    assert not proof.missing


def test_a_peers_memory_proves_nothing_and_is_not_waited_for() -> None:
    proof = Proof(["evac://peer:7000", "file:///a"])
    proof.worked("evac://peer:7000")

    assert set(proof.missing) == {"file:///a"}


def test_a_flush_proves_it_as_well_as_a_probe() -> None:
    for name in ("commit.finished", "trickle.finished"):
        proof = Proof(["file:///a"])
        proof.happened("plan.made", {})
        assert proof.missing
        proof.happened(name, {"store": "file:///a"})
        assert not proof.missing


def failed(proof: Proof, *reasons: str, fenced: bool = False) -> list[bool]:
    """In quiet time; whether each is news."""
    told = ({"store": "s3://b", "reason": one, "fenced": fenced} for one in reasons)
    return [proof.happened("trickle.failed", one) for one in told]


def test_a_store_that_worked_and_takes_nothing_any_more_is_dead_until_it_does() -> None:
    proof = Proof(["s3://b"])
    proof.worked("s3://b")

    assert failed(proof, "503", "503") == [False, False]
    assert not proof.missing
    assert not proof.dead, "it may be of a moment"
    assert failed(proof, "disk full", "quota") == [True, False]
    assert proof.missing == proof.dead == {"s3://b": "quota"}
    proof.happened("trickle.finished", {"store": "s3://b"})

    assert not proof.missing
    assert not proof.dead
    # Counted from anew.
    assert failed(proof, "503", "503") == [False, False]
    assert not proof.dead


def test_another_durable_store_that_works_is_a_place_to_save_to() -> None:
    proof = Proof(["file:///a", "s3://b"])
    proof.worked("file:///a")
    proof.worked("s3://b")

    failed(proof, *["403"] * 3)

    assert proof.dead == {"s3://b": "403"}
    assert not proof.missing


def test_a_generation_that_another_process_has_overtaken_says_nothing_of_its_store() -> None:
    proof = Proof(["s3://b"])
    proof.worked("s3://b")

    assert failed(proof, *["superseded"] * 9, fenced=True) == [False] * 9
    assert not proof.dead


def test_a_store_that_took_nothing_is_dead_until_it_takes_something() -> None:
    proof = Proof(["file:///a", "s3://b"])
    assert not proof.dead, "nobody has tried yet"

    proof.failed("s3://b", "connection refused")
    assert proof.dead == {"s3://b": "connection refused"}
    proof.happened("commit.finished", {"store": "s3://b"})

    assert not proof.dead
