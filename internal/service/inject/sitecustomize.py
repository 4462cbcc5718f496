"""Counts the steps of PyTorch optimizers for vigil. Put first in PYTHONPATH by the service of a role that has
`progress: {source: auto}`, and in `vigil run`; VIGIL_INJECT=0 keeps it out.

It imports no PyTorch. When the program does, torch.optim.optimizer is given a hook that runs after each
step, and says the number of steps done, counted from VIGIL_RESUME_STEP, on NOTIFY_SOCKET: at most one in 50
ms, marked as a guess. A program that says its steps itself is believed instead. Nothing here raises into the
program, and a sitecustomize of the machine or of the environment runs as it would without this one.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_WANTED = "torch.optim.optimizer"
_INTERVAL = 0.05


class _Counter:
    """Counts steps by optimizer: the role's step is that of the optimizer with the most."""

    def __init__(self, path):
        import socket
        import time
        import weakref

        self.path = "\0" + path[1:] if path.startswith("@") else path
        self.clock = time.monotonic
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.done = weakref.WeakKeyDictionary()
        self.due = 0.0
        self.inside = False
        try:
            self.begin = int(os.environ.get("VIGIL_RESUME_STEP", "0"))
        except ValueError:
            self.begin = 0

    def count(self, optimizer):
        try:
            self.done[optimizer] = done = self.done.get(optimizer, 0) + 1
            now = self.clock()
            if now < self.due or done < max(self.done.values()):
                return
            self.due = now + _INTERVAL
            if not _speaks_itself():
                self.socket.sendto(b"X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=%d" % (self.begin + done), self.path)
        except Exception:  # a step that is not said is no reason to end a training
            pass


def _speaks_itself():
    library = sys.modules.get("vigil")
    return library is not None and library._api.channel().spoke_step


def _hook(module, path):
    """Have every step of every optimizer counted."""
    counter = _Counter(path)
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:  # PyTorch 2
        register(lambda optimizer, args, kwargs: counter.count(optimizer))
        return
    _wrap_steps(module.Optimizer, counter)


def _wrap_steps(base, counter):
    """PyTorch 1 has no hook: the step of each class of optimizer is wrapped when one is made."""
    import functools

    made = base.__init__

    def wrapped(step):
        @functools.wraps(step)
        def counted(optimizer, *args, **kwargs):
            if counter.inside:  # a step that calls that of its base class
                return step(optimizer, *args, **kwargs)
            counter.inside = True
            try:
                result = step(optimizer, *args, **kwargs)
            finally:
                counter.inside = False
            counter.count(optimizer)
            return result

        counted._vigil_counts = True
        return counted

    @functools.wraps(made)
    def make(self, *args, **kwargs):
        made(self, *args, **kwargs)
        try:
            cls = type(self)
            if not getattr(cls.step, "_vigil_counts", False):
                cls.step = wrapped(cls.step)
        except Exception:
            pass

    base.__init__ = make


class _Finder:
    """Stands in sys.meta_path until the module that it waits for is imported."""

    def __init__(self, path):
        self.path = path

    def find_spec(self, name, path=None, target=None):
        if name != _WANTED:
            return None
        try:
            sys.meta_path.remove(self)
            return self.watched(name, path, target)
        except Exception:
            return None  # it is found as if this had never been here

    def watched(self, name, path, target):
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is None:
                continue
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                try:
                    del spec.loader.exec_module
                    _hook(module, self.path)
                except Exception:
                    pass

            spec.loader.exec_module = exec_module
            return spec
        return None


def _chain():
    """Run the sitecustomize that this one hides."""
    from importlib.machinery import PathFinder

    hidden = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p) != _FOLDER])
    if hidden is None or hidden.loader is None:
        return
    from importlib._bootstrap import module_from_spec

    module = module_from_spec(hidden)
    sys.modules["sitecustomize"] = module
    hidden.loader.exec_module(module)


if os.environ.get("NOTIFY_SOCKET") and os.environ.get("VIGIL_INJECT") != "0":
    sys.meta_path.insert(0, _Finder(os.environ["NOTIFY_SOCKET"]))
_chain()
