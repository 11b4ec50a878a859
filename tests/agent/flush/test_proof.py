"""A store counts as one that works from its first bytes on, and not before."""

from evacd.flush.proof import Proof


def test_each_store_is_unproven_until_it_took_bytes() -> None:
    proof = Proof(["a", "b"])
    assert set(proof.missing) == {"a", "b"}

    assert proof.failed("a", "no credentials")
    assert not proof.failed("a", "no credentials"), "told twice"
    assert proof.missing["a"] == "no credentials"
    proof.worked("a")
    assert not proof.failed("a", "HTTP 503")

    assert set(proof.missing) == {"b"}


def test_a_flush_proves_it_as_well_as_a_probe() -> None:
    for name in ("commit.finished", "trickle.finished"):
        proof = Proof(["a"])
        proof.happened("plan.made")
        assert proof.missing
        proof.happened(name)
        assert not proof.missing
