"""Lets a library's threads out of Python before the interpreter ends.

obstore's threads hand their answers to the event loop by `call_soon_threadsafe`, which releases the GIL
while it wakes the loop. A short program may be at its end before they have it back; taking
it from an interpreter that shuts down kills such a thread, and a Rust thread takes the whole process with
it (SIGABRT, 1 in 4 runs of a program whose last act is a listing).
"""

import sys
import threading
import time

# A thread that was just about to take the GIL has no frame yet.
_MOMENT = 0.005
_MOMENTS = 200


def wait_for_foreign_threads() -> None:
    """Wait until no thread that Python did not start runs Python, a second at most."""
    for _ in range(_MOMENTS):
        time.sleep(_MOMENT)
        ours = {
            thread.ident
            for thread in threading.enumerate()
            if not isinstance(thread, threading._DummyThread)
        }
        if not set(sys._current_frames()) - ours:
            return
