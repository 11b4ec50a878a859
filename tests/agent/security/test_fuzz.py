"""Whatever comes is understood or refused; nobody else notices.

`EVAC_NIGHTLY=1` (make nightly) sends a million packets instead of some ten thousand.
"""

import os
import random
import socket
from array import array
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evac.errors import ProtocolError
from evac.wire import decode, encode
from tests.agent.security.attack import NOBODY, Line, as_user
from tests.agent.security.conftest import Scene
from tests.agent.security.fuzz import packet

NIGHTLY = os.environ.get("EVAC_NIGHTLY") == "1"
_BATCH = 100
_EXAMPLES = 10_000 if NIGHTLY else 200
_OVER_THE_SOCKET = 50_000 if NIGHTLY else 500


@settings(
    max_examples=_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # fmt: skip
@given(seed=st.integers(0, 2**64))
def test_the_codec_understands_or_refuses(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(_BATCH):
        raw, refusal = packet(rng), ""
        try:
            got = decode(raw)
        except ProtocolError as error:
            refusal = error.reason
        if refusal:
            # It is told to the peer, whatever was in it.
            assert len(refusal[:1024].encode()) <= 4096
        else:
            # What is understood can be said again, and means the same.
            assert decode(encode(got.message, id=got.id, re=got.re)) == got


def test_the_fuzz_comes_near_what_it_tests() -> None:
    rng, understood, kinds = random.Random(7), 0, set()
    for _ in range(5000):
        with suppress(ProtocolError):
            kinds.add(decode(packet(rng)).message.type)
            understood += 1
    assert 500 < understood < 4500
    assert len(kinds) > 20


def test_the_daemon_outlives_it_and_a_bystander_goes_on(scene: Scene) -> None:
    def attack() -> int:
        rng, said = random.Random(11), 0
        while said < _OVER_THE_SOCKET:
            line = Line(scene.socket, hello=False)
            line.sock.settimeout(0.2)
            try:
                for opening in range(rng.randrange(3)):
                    if opening:
                        line.register(f"fuzz{rng.randrange(20)}", rank=rng.randrange(3))
                    else:
                        line.sock.send(b'{"type":"hello","id":9,"version":1}')
                        line.receive()
                for _ in range(20):
                    rights = []
                    if rng.random() < 0.1:
                        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [0]))]
                    line.sock.sendmsg([packet(rng)], rights)
                    said += 1
                    while rng.random() < 0.5 and line.receive() is not None:
                        pass
            except OSError:
                said += 1  # told and dropped, or nothing more to be read
            finally:
                line.close()
        return said

    assert as_user(NOBODY, attack) >= _OVER_THE_SOCKET
    assert scene.node.process
    assert scene.node.process.poll() is None
    log = scene.node.log.read_text()
    assert "Traceback" not in log
    assert log.count("workload.dropped") <= 3
