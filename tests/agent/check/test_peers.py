"""Who could open this node's memory, as `evacd check` says it."""

from pathlib import Path

import pytest

from evacd.check import Verdict
from evacd.check.peers import check_peer
from evacd.check.stores import check_store
from evacd.clock import SystemClock
from evacd.config import load
from evacd.peer import PeerServer, PeerSettings


def found(*, listen: str, token: Path | None = None) -> tuple[Verdict, str]:
    flags = {"peer.listen": listen, "peer.token_file": str(token) if token else None}
    finding = check_peer(load(None, {}, flags))
    return finding.verdict, f"{finding.detail} {finding.cure}"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("00112233445566778899aabbccddeeff\n")
    path.chmod(0o600)
    return path


def test_who_keeps_nothing_for_others_is_fine() -> None:
    assert found(listen="")[0] is Verdict.OK


def test_a_token_that_all_can_read_is_told(token: Path) -> None:
    assert found(listen="0.0.0.0:9912", token=token)[0] is Verdict.OK
    token.chmod(0o644)

    verdict, said = found(listen="0.0.0.0:9912", token=token)

    assert verdict is Verdict.WARN
    assert f"every user of this machine can read or change {token}" in said


def test_the_network_needs_a_token_and_this_machine_is_told_that_it_has_none(token: Path) -> None:
    assert found(listen="0.0.0.0:9912")[0] is Verdict.FAIL
    assert found(listen="[::]:9912")[0] is Verdict.FAIL
    verdict, said = found(listen="127.0.0.1:9912")
    assert verdict is Verdict.WARN
    assert "asks nobody on this machine" in said
    token.write_text("short")
    verdict, said = found(listen="127.0.0.1:9912", token=token)
    assert verdict is Verdict.FAIL
    assert "openssl rand -hex 32" in said


async def test_a_peer_is_measured_and_said_to_be_never_durable() -> None:
    settings = PeerSettings("127.0.0.1", 0, b"", 64 << 20, 3600.0, 16)
    clock = SystemClock()
    server = PeerServer(settings, clock, leaving=lambda: False, promised=lambda: 0)
    server.open()
    url = f"evac://127.0.0.1:{server.port}"
    finding = await check_store(url, durable_anyway=False, seconds=60, clock=clock)
    server.close()

    assert finding.verdict is Verdict.OK
    assert finding.detail.count("MB/s") == 2
    assert "never durable" in finding.detail
