"""Tells the service of an exception that the program has not caught, when its traceback is written: an interpreter with
PyTorch in it takes a second to end after that."""

import os
import sys
import time

# An exception that says one of these came from the end of another rank, which is then seen within this time,
# seconds: that one is the cause.
OF_PEERS = ("by peer", "Connection closed", "Broken pipe", "remote process exited", "DistNetworkError")
PEER_TIME = 0.2

to = ""  # where words go; empty: nobody listens
me = 0


def begin():
    """Note where words go, before the program can change it."""
    global to, me
    me = os.getpid()
    if os.environ.get("VIGIL_INJECT") != "0":
        to = os.environ.get("NOTIFY_SOCKET", "")


def when_written():
    """Have an exception that ends the program reported after sys.excepthook, as it is now, has run."""
    if not to or os.getpid() != me:  # a process that the program has forked is not the worker
        return
    before = sys.excepthook

    def excepthook(kind, error, where):
        before(kind, error, where)
        try:
            if issubclass(kind, Exception) and not getattr(error, "__vigil_reported__", False):
                error.__vigil_reported__ = True
                report(kind, error, where)
        except Exception:
            pass  # its end will be seen

    sys.excepthook = excepthook


def report(kind, error, where):
    import _socket
    import traceback

    lines = "".join(traceback.format_exception_only(kind, error)).replace("\0", " ").splitlines()
    text = " | ".join(line.strip() for line in lines if line.strip())
    if any(word in text for word in OF_PEERS):
        time.sleep(PEER_TIME)
    frames = traceback.extract_tb(where)
    if frames:
        text = "%s (%s:%s in %s)" % (text[:4000], os.path.basename(frames[-1].filename), frames[-1].lineno, frames[-1].name)
    out = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    out.setblocking(False)
    out.sendto(b"X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=" + text.encode("utf-8", "replace"), "\0" + to[1:] if to.startswith("@") else to)
    out.close()
