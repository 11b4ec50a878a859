"""Which of a job's peers are other nodes."""

from evacd.peer.others import others

NAMES = {"node-1", "10.0.0.1", "::1", "localhost"}


def test_this_node_is_left_out_by_name_and_by_address() -> None:
    named = ["node-1:9912", "10.0.0.1:9912", "[::1]:9912", "node-2:9912", "10.0.0.2:9912"]

    assert others(named, names=NAMES, listen="0.0.0.0:9912") == ("node-2:9912", "10.0.0.2:9912")


def test_another_port_of_this_machine_is_another_peer() -> None:
    assert others(["node-1:1", "node-1:1"], names=NAMES, listen="0.0.0.0:9912") == ("node-1:1",)


def test_who_takes_nothing_itself_is_none_of_them() -> None:
    assert others(["node-1:9912"], names=NAMES, listen="") == ("node-1:9912",)
