"""Counts the steps of PyTorch optimizers for vigil, and tells it of an exception that nobody catches. Put first in
PYTHONPATH by the service of a role that has `progress: {source: auto}`, and in `vigil run`; VIGIL_INJECT=0
keeps it out.

It imports no PyTorch. When the program does, torch.optim.optimizer is given a hook that runs after each
step, and says the number of steps done, counted from VIGIL_RESUME_STEP, on NOTIFY_SOCKET: at most one in 50
ms, marked as a guess. A program that says its steps itself is believed instead. In a fork server, which has no
NOTIFY_SOCKET, it waits for the workers. Nothing here raises into the program, and a sitecustomize of the machine,
of the environment or of an agent runs as it would without this one: once.
"""

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_WANTED = "torch.optim.optimizer"
_INTERVAL = 0.05


# An exception that says one of these came from the end of another rank, which is then seen within this time,
# seconds: that one is the cause.
_OF_PEERS = ("by peer", "Connection closed", "Broken pipe", "remote process exited", "DistNetworkError")
_PEER_TIME = 0.2


def _address(path):
    return "\0" + path[1:] if path.startswith("@") else path


class _Counter:
    """Counts steps by optimizer: the role's step is that of the optimizer with the most."""

    def __init__(self, path):
        import socket
        import time
        import weakref

        self.path = _address(path)
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


def _report_errors(path):
    """Have an exception that nobody catches reported once its traceback is written: an interpreter with PyTorch in it
    takes a second to end after that."""
    before = sys.excepthook
    me = os.getpid()
    # The first process with a hook reports; what it starts, whose end it may bear, inherits the name and does not.
    if os.environ.setdefault("VIGIL_HOOK_PID", str(me)) != str(me):
        return

    def excepthook(kind, error, where):
        before(kind, error, where)
        try:
            if issubclass(kind, Exception) and os.getpid() == me and not getattr(error, "__vigil_reported__", False):
                error.__vigil_reported__ = True
                _report(path, kind, error, where)
        except Exception:  # its end will be seen
            pass

    sys.excepthook = excepthook


def _report(path, kind, error, where):
    import socket
    import time
    import traceback

    lines = "".join(traceback.format_exception_only(kind, error)).replace("\0", " ").splitlines()
    text = " | ".join(line.strip() for line in lines if line.strip())
    if any(word in text for word in _OF_PEERS):
        time.sleep(_PEER_TIME)
    frames = traceback.extract_tb(where)
    if frames:
        text = "%s (%s:%s in %s)" % (text[:4000], os.path.basename(frames[-1].filename), frames[-1].lineno, frames[-1].name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.setblocking(False)
        s.sendto(b"X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=" + text.encode("utf-8", "replace"), _address(path))


def _begin(forked):
    """Count from here on, in a process that has its NOTIFY_SOCKET. Whoever runs the program of a forked worker
    reports its errors."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path or os.environ.get("VIGIL_INJECT") == "0":
        return
    if not forked:
        _report_errors(path)
    module = sys.modules.get(_WANTED)
    if module is not None:
        _hook(module, path)
    else:
        sys.meta_path.insert(0, _Finder(path))


class _Once:
    """What copies of this module share in one process: an agent's sitecustomize that runs the one it hides may come
    back here, and a vigil around this one has put its own copy into the path."""

    def __init__(self):
        self.ran = {os.path.realpath(__file__)}  # files of sitecustomize modules
        self.last = None  # the module that was run last


def _chain(once):
    """Run the sitecustomize that this one hides: the first behind its folder that no copy of it has run."""
    from importlib.machinery import PathFinder

    imported = vars(sys.modules.get("sitecustomize", os)) is globals()  # else somebody executes this file
    for folder in _behind():
        hidden = PathFinder.find_spec("sitecustomize", [folder])
        if hidden is None or hidden.loader is None:
            continue
        file = os.path.realpath(hidden.origin or folder)
        if file in once.ran:
            continue
        from importlib._bootstrap import module_from_spec

        once.ran.add(file)
        once.last = module = module_from_spec(hidden)
        if imported:
            sys.modules["sitecustomize"] = module
        hidden.loader.exec_module(module)
        return
    if imported and once.last is not None:
        sys.modules["sitecustomize"] = once.last  # where nothing is hidden, the one that looks keeps its place


def _behind():
    """The part of the path behind this module's folder; all of it if an agent has taken the folder out."""
    for at, folder in enumerate(sys.path):
        if isinstance(folder, str) and os.path.abspath(folder) == _FOLDER:
            return sys.path[at + 1 :]
    return list(sys.path)


_once = sys.__dict__.get("_vigil_hook")
if _once is None:
    _once = sys._vigil_hook = _Once()
    if os.environ.get("VIGIL_FORK_SERVER"):
        sys.__dict__.setdefault("_vigil_forked", []).append(lambda: _begin(True))
    else:
        _begin(False)
_once.ran.add(os.path.realpath(__file__))
_chain(_once)
