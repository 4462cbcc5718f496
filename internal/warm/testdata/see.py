"""Says everything that a process can see of itself, as one JSON object."""
import json
import logging
import random
import multiprocessing.process

import ctypes
import faulthandler
import gc
import inspect
import locale
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import warnings

LIBC = ctypes.CDLL(None)


class Pickled:
    pass


def read(name):
    with open("/proc/self/" + name, "rb") as f:
        return f.read().decode("utf-8", "surrogateescape")


def descriptors():
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink("/proc/self/fd/" + fd).split(":")[0]
        except OSError:
            pass
    return found


def stream(s):
    return [s.name, s.mode, s.encoding, s.errors, s.line_buffering, getattr(s, "write_through", None), s.isatty(),
            s.fileno(), s.seekable(), type(s.buffer).__name__, s is getattr(sys, "__%s__" % s.name.strip("<>"))]


def pdeathsig():
    out = ctypes.c_int()
    LIBC.prctl(2, ctypes.byref(out))
    return out.value


def c_environ():
    table = ctypes.POINTER(ctypes.c_char_p).in_dll(LIBC, "environ")
    found = []
    while table[len(found)]:
        found.append(table[len(found)].decode())
    return sorted(found)


status = dict(line.split(":\t", 1) for line in read("status").splitlines() if ":\t" in line)
frame = inspect.currentframe()
frames = []
while frame:
    frames.append(frame.f_code.co_filename)
    frame = frame.f_back

seen = {
    "argv": sys.argv,
    "orig_argv": getattr(sys, "orig_argv", None),
    "path": sys.path,
    "path_hooks": len(sys.path_hooks),
    "meta_path": [str(f).split(" object")[0] for f in sys.meta_path],
    "flags": str(sys.flags),
    "xoptions": sys._xoptions,
    "warnoptions": sys.warnoptions,
    "executable": sys.executable,
    "prefix": [sys.prefix, sys.base_prefix, sys.exec_prefix],
    "optimize": __debug__,
    "modules": sorted(sys.modules),
    "main": sorted(globals()),
    "main_name": __name__,
    "main_file": globals().get("__file__"),
    "main_spec": str(__spec__).split(" ")[0],
    "main_spec_name": getattr(__spec__, "name", None),
    "main_package": __package__,
    "main_cached": globals().get("__cached__"),
    "main_loader": getattr(__loader__, "__name__", None) or type(__loader__).__name__,
    "main_loader_path": getattr(__loader__, "path", None),
    "main_builtins": type(__builtins__).__name__,
    "main_is_main": sys.modules["__main__"].__dict__ is globals(),
    "annotations": globals().get("__annotations__"),
    "doc": __doc__,
    "stack": frames,
    "pickle": pickle.loads(pickle.dumps(Pickled())).__class__ is Pickled,
    "source": inspect.getsource(Pickled),
    "signals": {str(n): str(signal.getsignal(n)) for n in sorted(signal.valid_signals())},
    "masks": [status[k] for k in ("SigBlk", "SigIgn", "SigCgt")],
    "descriptors": descriptors(),
    "streams": [stream(s) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "leads_session": os.getsid(0) == os.getpid() == os.getpgrp(),
    "parent": os.getppid(),
    "dies_with_parent": pdeathsig(),
    "cgroup": [line for line in read("cgroup").splitlines() if line.startswith("0::")],
    "cwd": os.getcwd(),
    "umask": status["Umask"],
    "environ": list(os.environ.items()),
    "c_environ": c_environ(),
    "proc_environ": read("environ"),
    "cmdline": read("cmdline"),
    "comm": read("comm"),
    "exe": os.readlink("/proc/self/exe"),
    "limits": read("limits"),
    "oom": [read("oom_adj"), read("oom_score_adj")],
    "nice": os.nice(0),
    "cpus": sorted(os.sched_getaffinity(0)),
    "scheduler": os.sched_getscheduler(0),
    "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
    "privileges": [status.get(k) for k in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")],
    "personality": read("personality"),
    "coredump": read("coredump_filter"),
    "stack_limit": resource.getrlimit(resource.RLIMIT_STACK),
    "locale": locale.setlocale(locale.LC_ALL),
    "encodings": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), locale.getpreferredencoding()],
    "threads": os.listdir("/proc/self/task") == [str(os.getpid())],
    "main_thread": threading.current_thread() is threading.main_thread() and threading.active_count() == 1,
    "native_id": threading.main_thread().native_id == os.getpid() == threading.get_native_id(),
    "gc": [gc.isenabled(), gc.get_threshold(), gc.get_debug()],
    "frozen": gc.get_freeze_count() > 0,
    "warnings": [str(f) for f in warnings.filters],
    "logging": [logging.root.level, str(logging.root.handlers), sorted(logging.root.manager.loggerDict)],
    "faulthandler": faulthandler.is_enabled(),
    "excepthook": [sys.excepthook is sys.__excepthook__, str(threading.excepthook).split(" at ")[0]],
    "trace": [str(sys.gettrace()), str(sys.getprofile())],
    "recursion": sys.getrecursionlimit(),
    "tempdir": tempfile.tempdir,
    "multiprocessing": [multiprocessing.process.current_process().name, multiprocessing.process.parent_process()],
    "timers": [signal.getitimer(n) for n in (0, 1, 2)],
    "log_age": logging.LogRecord("", 0, "", 0, "", None, None).relativeCreated < 5000,
}
seen["random"] = [random.random(), multiprocessing.process.current_process().authkey.hex()]
seen["hash"] = hash("a")
if "torch" in sys.modules:
    import numpy
    torch = sys.modules["torch"]
    seen["random"] += [torch.initial_seed(), float(numpy.random.random())]
    seen["torch"] = [torch.get_num_threads(), torch.get_num_interop_threads(), torch.is_grad_enabled(),
                     str(torch.get_default_dtype()), torch.cuda.is_initialized()]
print(json.dumps(seen))
