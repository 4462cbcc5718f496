"""One life of one worker: who it is, where it goes on, and how it is stopped."""

import contextlib
import os
import random
import signal
import sys
import tempfile
import traceback

from tinyrl import say


class Life:
    """Who this process is, as vigil told it in the environment."""

    def __init__(self, role):
        env = os.environ
        self.role = role
        self.rank = int(env.get("VIGIL_RANK", "0"))
        self.resume = int(env.get("VIGIL_RESUME_STEP", "0"))
        self.seed = env.get("TINY_RL_SEED", "1")
        uid = env.get("VIGIL_LIFE", "").split("/")[0] or "alone"
        default = os.path.join(tempfile.gettempdir(), "tiny-rl-%d-%s" % (os.getuid(), uid))
        self.dir = env.get("TINY_RL_DIR") or default
        self._steady = False
        self._signal = 0
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number, frame):
        del frame
        self._signal = number
        if not self._steady:
            self._end()

    def _end(self):
        say.stopping()
        # Not 0: whoever ends a worker that vigil wants to run has not finished its work.
        raise SystemExit(128 + self._signal)

    @contextlib.contextmanager
    def steady(self):
        """A stop waits for the end of this block, so that what it changes is changed as a whole."""
        self._steady = True
        try:
            yield
        finally:
            self._steady = False
        if self._signal:
            self._end()

    def chance(self, step):
        """The randomness of one step: the same in every life that comes to it."""
        return random.Random("%s/%s/%d/%d" % (self.seed, self.role, self.rank, step))

    def print(self, text):
        print("%s %d: %s" % (self.role, self.rank, text), flush=True)


def run(role, loop):
    """Run loop(life) as the program. An error is told to vigil before the process ends with it."""
    life = Life(role)
    try:
        loop(life)
    except Exception as err:  # pylint: disable=broad-except
        say.error("%s: %s" % (type(err).__name__, err))
        traceback.print_exc()
        sys.exit(1)
