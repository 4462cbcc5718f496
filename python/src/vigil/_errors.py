"""Saying that something failed, at the moment when it is raised.

An interpreter with PyTorch in it takes most of a second to die: whoever waits for its end loses that.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import signal
import sys
import time
import traceback
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar, Union

from . import _api
from ._channel import one_line

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__vigil_reported__"
_FAULT_SIGNAL = "SIGUSR2"

#: Names the process whose uncaught exceptions are reported: the first with a hook. What it starts inherits the name.
_HOOK_PID = "VIGIL_HOOK_PID"
_reports_for = 0


def report_error(error: Union[BaseException, str], fatal: bool = False) -> None:
    """Say that this worker has failed. vigil repairs its role at once; the program need not end.

    The same exception is reported once, however many handlers it passes. With fatal=True no restart is
    tried: the job stops. It counts from any process of the worker, also from a child. It never raises, never
    waits, and does nothing outside vigil.
    """
    if _is_new(error, fatal):
        _say(error, "\nX_VIGIL_FATAL=1" if fatal else "")


def _is_new(error: Union[BaseException, str], again: bool = False) -> bool:
    """Whether an error has not been reported yet; from now on it has."""
    if isinstance(error, BaseException):
        if getattr(error, _MARK, False) and not again:
            return False
        try:
            setattr(error, _MARK, True)
        except Exception:  # an exception without a __dict__ is reported again
            pass
    return True


def _say(error: Union[BaseException, str], beside: str) -> None:
    text = "X_VIGIL_ERROR=" + describe(error) + beside
    _api._quietly(lambda: _api.channel().word(text))


def _claim() -> None:
    """Report for this process from now on, unless a program above it does: that one judges how its children end."""
    global _reports_for
    me = str(os.getpid())
    if os.environ.setdefault(_HOOK_PID, me) == me:
        _reports_for = os.getpid()


def _report_uncaught(error: BaseException) -> None:
    """Say that an exception ends this program, where this process is the one that reports. A process that it has
    forked is not."""
    if _reports_for == os.getpid() and _is_new(error):
        _say(error, "\nX_VIGIL_SOURCE=hook")


def describe(error: Union[BaseException, str]) -> str:
    """Return one line about an error: its type, its text, and where it was raised."""
    if not isinstance(error, BaseException):
        return one_line(str(error)) or "reported without a text"
    try:
        text = "".join(traceback.format_exception_only(type(error), error))
    except Exception:  # its __str__ raises
        text = type(error).__name__
    where = ""
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        last = frames[-1]
        where = " (%s:%s in %s)" % (os.path.basename(last.filename), last.lineno, last.name)
    return one_line(text) + where


def record(function: F) -> F:
    """Decorate the main function: when it raises, the error is reported and written down.

    In a process that the worker has started, such as a data loader, it is only written down: whether the error ends
    the worker is for the worker to say.

    The file is TORCHELASTIC_ERROR_FILE, in the shape in which torch.distributed.elastic's own @record
    writes it (torch/distributed/elastic/multiprocessing/errors/error_handler.py). The exception goes on.
    """

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _report_uncaught(error)
            write_error_file(error)
            raise

    return recorded  # type: ignore[return-value]


def write_error_file(error: BaseException) -> None:
    """Write TORCHELASTIC_ERROR_FILE, if there is one to write. Never raises."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    try:
        said = {
            "message": {
                "message": "%s: %s" % (type(error).__name__, error),
                "extraInfo": {
                    "py_callstack": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
                    "timestamp": str(int(time.time())),
                },
            }
        }
        half = "%s.%d" % (path, os.getpid())
        with open(half, "w", encoding="utf-8", errors="replace") as file:
            json.dump(said, file)
        os.replace(half, path)  # nobody reads half a file
    except Exception:
        _api._log.debug("error file %s is not written", path, exc_info=True)


_hook_before: Optional[Callable[..., Any]] = None


def _report_and_pass_on(
    kind: Type[BaseException], error: BaseException, where: Optional[TracebackType]
) -> None:
    # The traceback first: whoever hears of the error may end this process before it is written.
    try:
        (_hook_before or sys.__excepthook__)(kind, error, where)
    finally:
        if not issubclass(kind, KeyboardInterrupt):
            _report_uncaught(error)


def install() -> None:
    """Report what nobody catches, and have the stacks written on a signal. Done at import, under vigil."""
    global _hook_before
    _claim()
    if sys.excepthook is not _report_and_pass_on:
        _hook_before = sys.excepthook
        sys.excepthook = _report_and_pass_on
    arm_faulthandler()


def arm_faulthandler() -> None:
    """Have SIGUSR2 write the stacks of all threads to standard error, unless somebody uses that signal.

    VIGIL_FAULTHANDLER=0 keeps it off.
    """
    if os.environ.get("VIGIL_FAULTHANDLER") == "0":
        return
    number = getattr(signal, _FAULT_SIGNAL)
    try:
        if signal.getsignal(number) is not signal.SIG_DFL:
            return
        # The descriptor, since sys.stderr may be replaced and closed.
        faulthandler.register(number, file=2, all_threads=True, chain=False)
    except Exception:
        return
    _api._quietly(lambda: _api.channel().word("X_VIGIL_FAULTHANDLER=" + _FAULT_SIGNAL))
