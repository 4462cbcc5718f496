"""Says things to vigil: datagrams of KEY=VALUE lines on the socket that NOTIFY_SOCKET names.

Nothing here ever waits or raises. Without the socket, or with one that is full, a word is dropped.
"""

import os
import socket
import time

_socket = None
_last_step = 0.0


def words(*lines):
    """Send the lines in one datagram; return whether they were taken."""
    global _socket
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return False
    if path.startswith("@"):
        path = "\0" + path[1:]
    try:
        if _socket is None:
            _socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            _socket.setblocking(False)
        _socket.sendto("\n".join(lines).encode("utf-8", "replace"), path)
        return True
    except (OSError, ValueError):
        return False


def ready():
    """The worker is up."""
    return words("READY=1")


def step(n):
    """The worker has done step n. At most one word in 50 ms; the first is always sent."""
    global _last_step
    now = time.monotonic()
    if _last_step and now - _last_step < 0.05:
        return False
    _last_step = now
    return words("X_VIGIL_STEP=%d" % n, "STATUS=at step %d" % n)


def alive(status):
    """The worker's loop goes round, but without a step: it waits."""
    return words("WATCHDOG=1", "STATUS=" + status.replace("\n", " "))


def checkpoint(n):
    """The work of step n is saved completely."""
    return words("X_VIGIL_CHECKPOINT=%d" % n)


def error(text):
    """Something failed; the worker is about to end."""
    return words("X_VIGIL_ERROR=" + text.replace("\n", " "))


def stopping():
    """The worker ends in order."""
    return words("STOPPING=1")
