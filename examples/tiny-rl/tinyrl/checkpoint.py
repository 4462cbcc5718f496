"""Checkpoints of one role: DIR/ROLE/STEP.json, whole or not there at all."""

import json
import os
import tempfile

KEPT = 5


class Checkpoints:
    """The checkpoints in one folder."""

    def __init__(self, folder):
        self.folder = folder

    def save(self, step, state):
        """Write a checkpoint, and remove the oldest ones."""
        os.makedirs(self.folder, exist_ok=True)
        replace(self._path(step), json.dumps({"step": step, "state": state}))
        self._remove(self.steps()[:-KEPT])

    def load(self, limit):
        """(step, state) of the newest checkpoint not beyond limit; with a limit of 0, or with none so
        old, the newest there is; (0, None) without any. One that cannot be read is passed over. Those
        beyond the one loaded are removed: this life takes another way from here."""
        steps = sorted(self.steps(), reverse=True)
        if limit > 0:
            steps.sort(key=lambda s: s > limit)
        for step in steps:
            try:
                with open(self._path(step), encoding="utf-8") as f:
                    found = json.load(f)
                if found["step"] == step:
                    self._remove(s for s in steps if s > step)
                    return step, found["state"]
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return 0, None

    def steps(self):
        """The steps of which there are checkpoints, ascending."""
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        stems = (n[:-5] for n in names if n.endswith(".json"))
        return sorted(int(s) for s in stems if s.isdigit())

    def _remove(self, steps):
        for step in steps:
            try:
                os.remove(self._path(step))
            except OSError:
                pass  # one too many does no harm

    def _path(self, step):
        return os.path.join(self.folder, "%d.json" % step)


def replace(path, text):
    """Write a file so that a crash at any instant leaves the old one or the new one."""
    folder = os.path.dirname(path)
    fd, new = tempfile.mkstemp(prefix=".new-", dir=folder)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
