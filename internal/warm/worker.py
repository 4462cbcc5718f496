"""How a process that was forked becomes one that looks executed."""

import _frozen_importlib_external as _loaders
import _signal
import _socket
import builtins
import ctypes
import gc
import os
import sys
import time

ARGV0 = {"module": "-m", "command": "-c"}
LIBC = ctypes.CDLL(None, use_errno=True)


def become(control, signals, collects, files, folders, given):
    """Make of this process what executing the program would have made, as soon as the service asks for it. signals
    are the handlers that the fork server has replaced, files what it watches, folders its temporary ones, given the
    environment that it was executed with. Returns what is to be run."""
    try:
        for remove, _ in folders:  # they are everybody's: the fork server removes them
            remove.detach()
        os.setsid()
        for number, handler in signals.items():
            _signal.signal(number, handler)
        request, streams = read_request(control)
        for number, fd in enumerate(streams):
            os.dup2(fd, number, inheritable=True)
            os.close(fd)
        path = imports.changed(files)
        if path:
            refuse(control, b"changed\0" + os.fsencode(path) + b" has changed since it was imported")
        parent, dies, cwd, kind, target, count, args = request[:7]
        command, environ = request[7:7 + int(count)], request[7 + int(count):]
        os.chdir(cwd)
        changes = environ_changes(given)
        set_environ(environ)
        change_environ(changes, given)
        reports.begin()
        show(command, environ)
        command = [os.fsdecode(word) for word in command]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv = command
        fresh_streams()
        fresh_modules()
        work = prepare(kind.decode(), os.fsdecode(target), command[int(args):])
        for late in sys.__dict__.pop("_vigil_forked", ()):  # left by a sitecustomize of the service's
            late()
        store.wait_for_listener()
        if dies == b"1":
            LIBC.prctl(1, _signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(parent):
            os._exit(0)
        os.write(control, b"ready")
        if not os.read(control, 1):
            os._exit(0)
    except BaseException as e:
        refuse(control, imports.in_words(e).encode("utf-8", "replace"))
    os.close(control)
    if collects:
        gc.enable()
    return work


def refuse(control, why):
    """Say why, and end when the service has heard it: one that ended earlier could not be adopted, and what it said
    would be lost."""
    try:
        os.write(control, why)
        os.read(control, 1)
    finally:
        os._exit(0)


def read_request(control):
    """Four bytes of length, with which come the three streams, and the fields."""
    flags = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
    connection = _socket.socket(fileno=control)
    got, ancillary, _, _ = connection.recvmsg(1 << 16, _socket.CMSG_LEN(12), flags)
    while got and len(got) < 4 + int.from_bytes(got[:4], "big"):
        more = connection.recv(1 << 16)
        got = got + more if more else b""
    if not got:
        os._exit(0)  # the service does not need this worker, or has died
    connection.detach()
    return got[4:].split(b"\0"), list(memoryview(ancillary[0][2]).cast("i"))


def set_environ(environ):
    os.environb.clear()
    for item in environ:
        name, divided, value = item.partition(b"=")
        if divided and name and name not in os.environb:  # as Python reads it: the first one counts
            os.environb[name] = value


def given_environ():
    """The environment that this process was executed with, by name."""
    given = {}
    with open("/proc/self/environ", "rb") as f:
        for item in f.read().split(b"\0"):
            name, _, value = item.partition(b"=")
            given.setdefault(name, value)
    return given


def environ_changes(given):
    """What was imported, or a sitecustomize, has changed in the environment: values by name, None for what is gone."""
    now = dict(os.environb)
    changes = {name: value for name, value in now.items() if given.get(name) != value}
    changes.update((name, None) for name in given if name and name not in now)
    return changes


def change_environ(changes, given):
    """Make the same changes to the environment of a life, but for what is the life's own."""
    for name, value in changes.items():
        if os.environb.get(name) != given.get(name):
            continue
        if value is None:
            os.environb.pop(name, None)
        else:
            os.environb[name] = value


def show(argv, environ):
    """Have /proc show argv and environ as this process's own (prctl(2), PR_SET_MM_MAP). Kernels without it go on
    showing the fork server's."""
    try:
        with open("/proc/self/stat", "rb") as f:
            field = [b"", b"", b""] + f.read().rpartition(b")")[2].split()  # field[3] is the state
        argv = b"\0".join(os.fsencode(a) for a in argv) + b"\0"
        args, args_end = lasting(argv)
        env, env_end = (int(field[50]), int(field[51])) if environ is None else lasting(
            b"".join(item + b"\0" for item in environ))
        LIBC.sbrk.restype = ctypes.c_void_p
        brk = LIBC.sbrk(ctypes.c_ssize_t(0))
        numbers = [int(field[i]) for i in (26, 27, 45, 46, 47)] + [brk, int(field[28]), args, args_end, env, env_end]
        numbers += [0, 0xffffffff << 32]  # no auxiliary vector, no executable
        image = (ctypes.c_uint64 * len(numbers))(*numbers)
        size = ctypes.c_ulong(ctypes.sizeof(image))
        LIBC.prctl(35, ctypes.c_ulong(14), ctypes.byref(image), size, ctypes.c_ulong(0))
    except (OSError, ValueError, IndexError):
        pass


def lasting(content):
    """Memory that nobody frees: where it begins and ends."""
    LIBC.malloc.restype = ctypes.c_void_p
    at = LIBC.malloc(ctypes.c_size_t(len(content) + 1))
    ctypes.memmove(at, content, len(content))
    return at, at + len(content)


def fresh_streams():
    """Streams were made for pipes; those on a terminal are flushed at each line."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and os.isatty(stream.fileno()):
            stream.reconfigure(line_buffering=True)


def fresh_modules():
    """What modules drew or noted when they were imported. The module random is renewed by Python itself."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    vigil = sys.modules.get("vigil")  # the library, which reads the environment when it is imported
    if hasattr(vigil, "_api"):
        vigil._api.start_again()
        if vigil.active():
            vigil._install()
    threading = sys.modules.get("threading")
    if hasattr(threading, "main_thread"):
        threading.main_thread()._set_native_id()
    logging = sys.modules.get("logging")
    if logging is not None:
        logging._startTime = time.time() if isinstance(logging._startTime, float) else time.time_ns()


def temporary_folders():
    """Temporary folders that modules have made while they were imported, as torch.distributed.nn does: what
    removes each at the end of the process, and its name."""
    weakref, tempfile = sys.modules.get("weakref"), sys.modules.get("tempfile")
    folder = getattr(tempfile, "TemporaryDirectory", None)
    found = []
    for remove in list(getattr(getattr(weakref, "finalize", None), "_registry", ())):
        alive = remove.peek()
        if alive and folder is not None and isinstance(alive[0], folder):
            found.append((remove, alive[0].name))
    return found


def set_first_path(kind, target):
    """What Python puts first in sys.path, unless told not to."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    if kind == "script":
        sys.path[0] = os.path.dirname(os.path.realpath(target))
    else:
        sys.path[0] = os.getcwd() if kind == "module" else ""


def prepare(kind, target, args):
    """Set sys and __main__ as the interpreter does before it runs a program (CPython, Modules/main.c)."""
    old = sys.modules["__main__"].__dict__
    main = type(sys)("__main__")
    main.__builtins__ = builtins
    if "__annotations__" in old:
        main.__annotations__ = {}
    main.__loader__ = old["__loader__"]
    sys.modules["__main__"] = main
    sys.argv = [ARGV0.get(kind, target)] + args
    set_first_path(kind, target)
    if kind == "module":
        import runpy
        return kind, target, None, runpy._run_module_as_main
    if kind == "command":
        return kind, target + "\n", "<string>", main.__dict__
    path = target if target.startswith("/") else os.getcwd() + "/" + target
    with open(path, "rb") as f:
        source = f.read()
    main.__file__ = path
    main.__cached__ = None
    main.__loader__ = _loaders.SourceFileLoader("__main__", path)
    return kind, source, path, main.__dict__


def leave_out_this_frame(error):
    """Have a traceback begin with the program, as that of an executed one does."""
    error.__traceback__ = error.__traceback__.tb_next
    if sys.version_info >= (3, 11):
        return  # what is raised again is the exception with this traceback
    hook = sys.excepthook

    def excepthook(kind, value, traceback):
        value.__traceback__ = traceback.tb_next
        hook(kind, value, traceback.tb_next)

    sys.excepthook = excepthook
