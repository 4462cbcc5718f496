"""The functions of the package. They share one Channel, that of the process."""

from __future__ import annotations

import atexit
import functools
import logging
import math
import os
import threading
import time
from types import TracebackType
from typing import Any, Callable, Optional, Tuple, Type, TypeVar

from ._channel import Channel, one_line

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("vigil")
_channel = Channel(os.environ)
_callback: Optional[Callable[[int], object]] = None
_phase_bytes = 64  # the longest name of a phase


def channel() -> Channel:
    """Return the channel of this process."""
    return _channel


def use(channel: Channel) -> None:
    """Speak by that channel from now on."""
    global _channel
    _channel = channel
    _pace(channel)


def start_again() -> None:
    """Begin anew from the environment, as a forked child does."""
    _channel.abandon()
    use(Channel(os.environ))


def _beating() -> Tuple[Callable[[Optional[int]], None], Callable[[Channel], None]]:
    """Return heartbeat(), and what gives it another channel.

    It is called in every step, when a training has just filled the caches with other things: variables of a
    closure cost a third of what attributes cost.
    """
    clock: Callable[[], float] = time.monotonic
    due = math.inf
    held: Optional[int] = None

    def heartbeat(step: Optional[int] = None) -> None:
        """Say that the training loop gets on, and how far. Call it once in every step.

        It takes less than a microsecond most of the time: at most one step in 50 ms is sent, and the newest
        one that was held back goes out before anything else that is said and at the end of the program. It
        never waits and never raises; outside vigil it does nothing. Without a step it is only a sign of life.

        Here the loop also takes orders: the function given to on_set_step is called from here.
        """
        nonlocal held
        if clock() >= due:
            _step(step)
        elif step is not None:
            held = step

    def set_due(when: float) -> None:
        nonlocal due
        due = when

    def take_held() -> Optional[int]:
        nonlocal held
        was, held = held, None
        return was

    def pace(channel: Channel) -> None:
        nonlocal clock, due, held
        clock, held = channel.clock, None
        due = 0.0 if channel.to else math.inf
        channel.set_due, channel.take_held = set_due, take_held

    heartbeat.__qualname__ = "heartbeat"
    return heartbeat, pace


heartbeat, _pace = _beating()
use(_channel)

os.register_at_fork(after_in_child=start_again)
atexit.register(lambda: _channel.finish())


def active() -> bool:
    """Say whether this process runs under vigil, or under whoever else gave it a NOTIFY_SOCKET."""
    return bool(_channel.to)


def _step(step: Optional[int]) -> None:
    """Send a step that is due, and look for orders."""
    c = _channel
    try:
        c.step(None if step is None else int(step))
        c.listen()
        if c.order is not None and _callback is not None:
            _carry_out(c)
    except Exception:  # the loop is worth more than its heartbeat
        c.dropped += 1
        _log.debug("heartbeat(%r) is not sent", step, exc_info=True)


def _carry_out(c: Channel) -> None:
    assert c.order is not None and _callback is not None
    step, seq = c.order
    c.order = None
    try:
        _callback(step)
    except Exception:
        _log.exception("step %d was ordered and is not taken", step)
        return
    c.took(seq)


def on_set_step(callback: Callable[[int], object]) -> None:
    """Have heartbeat() call callback(step) when somebody sets the step of this running worker.

    The order is acknowledged when the callback has returned, not if it raises. Without a callback, and
    without pending_step(), a step that is set is taken at the next start of the worker.
    """
    global _callback
    _callback = callback
    _quietly(_channel.listen)


def pending_step() -> Optional[int]:
    """Return the step that was set from outside since the last call, else None.

    Returning it acknowledges it: go on from there. An alternative to on_set_step().
    """
    c = _channel
    _quietly(c.listen)
    order = c.order
    if order is None:
        return None
    _quietly(lambda: c.took(order[1]))
    return order[0]


def should_stop() -> bool:
    """Say whether vigil has asked this worker to end in order. Once true, it stays so.

    The stop signal comes as well, and SIGTERM ends a Python program that does not handle it: a loop that
    wants to end by itself sets a handler of its own.
    """
    c = _channel
    if c.stop or not c.to:
        return c.stop
    _quietly(c.listen)
    return c.stop


def resume_step(default: int = 0) -> int:
    """Return the step to go on from, as vigil has said it at the start of this worker."""
    try:
        return int(os.environ["VIGIL_RESUME_STEP"])
    except (KeyError, ValueError):
        return default


def checkpointed(step: int) -> None:
    """Say that the work of this step is saved completely: from here a restart can go on."""
    _quietly(lambda: _channel.word("X_VIGIL_CHECKPOINT=%d" % step))


def ready() -> None:
    """Say that this worker is up (READY=1), for roles with `ready: {notify: true}`."""
    _quietly(lambda: _channel.word("READY=1"))


def status(text: str) -> None:
    """Say in words what this worker does (STATUS=); it is shown, and nothing else."""
    _quietly(lambda: _channel.word("STATUS=" + one_line(text)))


class phase:
    """A stretch of work with a name, which may have a limit of its own: limits.phases in the job file.

    As a context manager, `with vigil.phase("checkpoint"): save()`, or as a decorator of a function.
    Phases may be nested. A name is at most 64 bytes long.
    """

    def __init__(self, name: str) -> None:
        self.name = one_line(str(name), _phase_bytes) or "unnamed"

    def __enter__(self) -> "phase":
        _quietly(lambda: _channel.word("X_VIGIL_PHASE=+" + self.name))
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], where: Optional[TracebackType]
    ) -> None:
        _quietly(lambda: _channel.word("X_VIGIL_PHASE=-" + self.name))

    def __call__(self, function: F) -> F:
        @functools.wraps(function)
        def within(*args: Any, **kwargs: Any) -> Any:
            with phase(self.name):
                return function(*args, **kwargs)

        return within  # type: ignore[return-value]


def watching_paused() -> phase:
    """Return a phase in which silence does not count: `with vigil.watching_paused(): debug()`.

    Watching comes back at its end, also after an exception. The start limit bounds it.
    """
    return phase("paused")


def dropped() -> int:
    """Return how many words could not be said, because nobody read them."""
    return _channel.dropped


def _quietly(do: Callable[[], object]) -> None:
    try:
        do()
    except Exception:
        _log.debug("a word is not said", exc_info=True)


def in_main_thread() -> bool:
    """Say whether this is the thread in which signals are handled."""
    return threading.current_thread() is threading.main_thread()
