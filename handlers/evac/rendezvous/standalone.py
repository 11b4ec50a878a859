"""`evac store`: the rendezvous store of torchrun jobs on its own, for a machine that stays.

An agent that serves it takes it along when its node leaves: the others carry on with it elsewhere,
but a replacement then has to be told where. A Service with one small pod, or an on-demand node, does not move.
"""

import argparse
import signal
import sys

from evac.rendezvous.address import PORTS, TCPSTORE

DESCRIPTION = """\
Serve the rendezvous store of any number of torchrun jobs, on all addresses of this machine, until
SIGTERM. Needs torch (pip install 'evac[torch]').

  torchrun --rdzv-backend=evac --rdzv-endpoint=HOST:PORT --rdzv-conf=is_host=false ...
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--port",
        type=_port,
        default=PORTS[TCPSTORE],
        help="to listen on; 0 takes a free one (default %(default)s)",
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port, 0 to 65535")
    return int(text)


def store(args: argparse.Namespace) -> int:
    """Serve until told to stop; returns the exit code."""
    stop = {signal.SIGTERM, signal.SIGINT}
    # Before the server's threads begin, which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    try:
        from evac.rendezvous.keys import Unreachable
        from evac.rendezvous.torch_keys import serve
    except ModuleNotFoundError as error:
        return _fail(f"{error.name} is not installed: pip install 'evac[torch]'", code=2)
    try:
        server = serve("localhost", args.port)
    except Unreachable as error:
        return _fail(str(error), code=1)
    sys.stdout.write(f"serving on port {server.port}\n")
    sys.stdout.flush()
    signal.sigwait(stop)
    return 0


def _fail(text: str, *, code: int) -> int:
    sys.stderr.write(f"evac: {text}\n")
    return code
