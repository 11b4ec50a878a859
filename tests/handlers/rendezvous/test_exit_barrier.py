"""Of torch's own barrier at a job's end: who leaves instead is not waited for."""

import threading

from torch.distributed import TCPStore  # type: ignore[attr-defined] # public, but not in __all__
from torch.distributed.elastic.agent.server import api
from torch.distributed.elastic.utils import store as store_util

from evac.rendezvous.exit_barrier import depart, finishing
from tests.handlers.rendezvous.nodes import HOST, PATIENCE_SECONDS, until

KEY = api._TERMINAL_STATE_SYNC_ID  # pyright: ignore[reportPrivateUsage] # it is what we depend on


def test_who_has_finished_goes_on_once_who_leaves_has_said_so() -> None:
    server = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    assert not finishing(server)
    assert not depart(server, 2)
    assert not finishing(server)

    def finish() -> None:
        client = TCPStore(HOST, server.port, is_master=False)
        store_util.barrier(client, 2, KEY, PATIENCE_SECONDS)

    done = threading.Thread(target=finish)
    done.start()
    until("one waits", lambda: finishing(server))

    assert depart(server, 2)

    done.join(PATIENCE_SECONDS)
    assert not done.is_alive()
