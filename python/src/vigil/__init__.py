"""What a training program says to vigil, and is told by it.

    import vigil

    for step in range(vigil.resume_step(), steps):
        train(step)
        vigil.heartbeat(step)
        if step % 1000 == 0:
            with vigil.phase("checkpoint"):
                save(step)
            vigil.checkpointed(step)

Outside vigil every function does nothing. None waits, none raises into the training loop, and no thread
is started. Importing the package under vigil has two effects: an exception that nobody catches is
reported when it is raised (sys.excepthook, chained), and SIGUSR2 writes the stacks of all threads to
standard error, unless the program uses that signal itself.
"""

from ._api import (
    active,
    checkpointed,
    dropped,
    heartbeat,
    on_set_step,
    pending_step,
    phase,
    ready,
    resume_step,
    should_stop,
    status,
    watching_paused,
)
from ._errors import install as _install
from ._errors import record, report_error

__version__ = "0.1.0"

__all__ = [
    "active",
    "checkpointed",
    "dropped",
    "heartbeat",
    "on_set_step",
    "pending_step",
    "phase",
    "ready",
    "record",
    "report_error",
    "resume_step",
    "should_stop",
    "status",
    "watching_paused",
]

if active():
    _install()
