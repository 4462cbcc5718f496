"""The two datagram sockets between a worker and its service.

Words go to NOTIFY_SOCKET, one datagram of KEY=VALUE lines each (the convention of sd_notify(3)). Orders
come to VIGIL_INBOX, which the worker binds. Nothing here waits for anything, and nothing raises: what
cannot be said now is kept or counted.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from typing import Callable, Deque, List, Mapping, Optional, Tuple

#: The least time between two steps that are sent, in seconds.
STEP_INTERVAL = 0.05

#: How often the inbox is looked for, in seconds: somebody may remove its file.
INBOX_INTERVAL = 1.0

#: How many words that must not be lost are kept while the service does not read.
BACKLOG = 256

#: The longest text of one word, in bytes of UTF-8.
LONGEST = 8000

_MOST_ORDERS = 64  # read at one time: a flood must not hold the loop up


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return text as it can stand in one line of a datagram: no line ends, no NUL, not too long."""
    flat = " | ".join(part.strip() for part in text.replace("\0", " ").splitlines() if part.strip())
    return flat.encode("utf-8", "replace")[:longest].decode("utf-8", "ignore")


class Channel:
    """What one process says and hears. Made from an environment; without NOTIFY_SOCKET it is mute."""

    def __init__(self, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.to = environ.get("NOTIFY_SOCKET", "")
        if self.to.startswith("@"):  # an abstract name
            self.to = "\0" + self.to[1:]
        self.inbox_path = environ.get("VIGIL_INBOX", "")
        self.lock = threading.RLock()  # re-entrant: a signal handler may speak, too
        self.dropped = 0  # words that were given up
        # The two belong to whoever beats: when the next step may be sent and the inbox be read, and the newest
        # step that was held back, which goes out before what is said next, or at the end.
        self.set_due: Callable[[float], None] = lambda due: None
        self.take_held: Callable[[], Optional[int]] = lambda: None
        self.spoke_step = False
        self.stop = False
        self.order: Optional[Tuple[int, int]] = None  # step and seq that wait to be taken
        self._backlog: Deque[bytes] = deque()
        self._out: Optional[socket.socket] = None
        self._in: Optional[socket.socket] = None
        self._wait: Callable[[int], List[Tuple[int, int]]] = lambda timeout: []  # for an order, in ms
        self._look = 0.0  # when the inbox is looked for again

    # -- saying ---------------------------------------------------------------------------------

    def step(self, step: Optional[int]) -> None:
        """Say that the loop gets on. The caller has seen that a step is due."""
        with self.lock:
            self.set_due(self.clock() + STEP_INTERVAL)
            self.take_held()
            if step is None:
                self._try(b"WATCHDOG=1")
            else:
                self.spoke_step = True
                self._try(b"X_VIGIL_STEP=%d" % step)

    def word(self, text: str) -> None:
        """Say something that must not be lost. While the service does not read, it is kept in order."""
        if not self.to:
            return
        with self.lock:
            self.release()
            if len(self._backlog) >= BACKLOG:
                self.dropped += 1
                return
            self._backlog.append(text.encode("utf-8", "replace"))
            self._flush()

    def release(self) -> None:
        """Say the step that was held back, if there is one."""
        held = self.take_held()
        if held is None:
            return
        try:
            self.step(int(held))
        except (TypeError, ValueError, OverflowError):  # what the caller gave was no number
            self.dropped += 1

    def _flush(self) -> bool:
        while self._backlog:
            if not self._send(self._backlog[0]):
                return False
            self._backlog.popleft()
        return True

    def _try(self, word: bytes) -> None:
        if not self.to:
            return
        if not (self._flush() and self._send(word)):
            self.dropped += 1

    def _send(self, word: bytes) -> bool:
        # Connected once: a word then costs no walk along the path, and arrives although the path is gone.
        if self._out is not None:
            try:
                self._out.send(word)
                return True
            except BlockingIOError:
                return False
            except OSError:  # who listened there has closed; another may by now
                self._out.close()
                self._out = None
        out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            out.setblocking(False)
            out.connect(self.to)
            out.send(word)
        except OSError:
            out.close()
            return False
        self._out = out
        return True

    # -- hearing --------------------------------------------------------------------------------

    def listen(self) -> None:
        """Read the orders that have come. The first call binds the inbox."""
        if not self.inbox_path:
            return
        with self.lock:
            if self.clock() >= self._look:
                self._find_inbox()
            if self._in is None:
                return
            for _ in range(_MOST_ORDERS):
                # Asking costs half of what the exception of an empty socket costs.
                if not self._wait(0):
                    return
                try:
                    order = self._in.recv(4096)
                except OSError:
                    return
                self._obey(order.decode("utf-8", "replace"))

    def _find_inbox(self) -> None:
        """Bind the inbox; again where its file has been removed, which leaves the old one without a word."""
        first, self._look = self._look == 0.0, self.clock() + INBOX_INTERVAL
        if not first and (self._in is None or os.path.lexists(self.inbox_path)):
            return
        found = _bind(self.inbox_path)
        if found is None:
            return
        if self._in is not None:
            self._in.close()
        self._in = found
        poll = select.poll()
        poll.register(found, select.POLLIN)
        self._wait = poll.poll

    def _obey(self, order: str) -> None:
        said = dict(part.split("=", 1) for part in order.split() if "=" in part)
        if said.get("STOP") == "1":
            self.stop = True
        try:
            self.order = (int(said["SET_STEP"]), int(said["SEQ"]))
        except (KeyError, ValueError):
            return

    def took(self, seq: int) -> None:
        """Say that the order of that number is carried out. Steps of before are not sent any more."""
        with self.lock:
            self.take_held()
            self.order = None
            self.set_due(0.0)
            self.word("X_VIGIL_ACK=%d" % seq)

    # -- ending ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Say what was held back."""
        with self.lock:
            self.release()
            self._flush()

    def abandon(self) -> None:
        """Let go of the sockets without a word: they belong to the parent of this process."""
        for s in (self._out, self._in):
            if s is not None:
                s.close()
        self._out = self._in = None


def _bind(path: str) -> Optional[socket.socket]:
    """Bind the inbox; None where another process of this worker listens there already."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.setblocking(False)
    for _ in range(2):
        try:
            s.bind(path)
            return s
        except OSError:
            if _is_heard(path):
                break
            try:
                os.unlink(path)  # of a program that this process has replaced by exec
            except OSError:
                break
    s.close()
    return None


def _is_heard(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        try:
            s.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True
