"""The fork server: imports modules once and forks workers that have them.

Runs under Python 3.9 or newer, without a file of its own. SOCKET, which whoever runs this has set, is a
SOCK_SEQPACKET socket to the service. Messages are fields divided by zero bytes. First comes what to import:

    KIND OF PROGRAM (script, module or command), ITS NAME OR TEXT, MODULE...

which is answered by "importing MODULE" each, then "ready MODULE..." or "unfit WHY". After that each message
"fork" brings a control socket for one worker and is answered by "pid PID", "error WHY" or "unfit WHY" (a fork would
not be safe: never ask again). The worker, which is no child of the fork server but of the service, waits for its
request on the control socket, with which come its stdin, stdout and stderr; it says "ready" there, "changed WHY" if
a new fork server is needed, or why it cannot be what it shall; with the first byte that it reads after "ready" it is
the program.

Everything is kept out of the worker's sight that can be: docs/guides/warm-start.md lists what cannot.
"""

import _signal
import _socket
import gc
import os
import sys


def say(*words):
    SOCKET.send("\0".join(words).encode("utf-8", "surrogateescape")[:60000])


def serve():
    """Import, then fork for whoever asks. Returns in workers only, what the frame below this one is to run: that
    frame is then all that is under the program."""
    kind, target, *wanted = SOCKET.recv(1 << 20).decode("utf-8", "surrogateescape").split("\0")
    given = worker.given_environ()
    worker.set_first_path(kind, target)
    sys.argv = [worker.ARGV0.get(kind, target)]
    try:
        names = imports.preload(wanted, kind, target, say)
        why = fitness.unfit([SOCKET.fileno()])
    except RuntimeError as e:
        why = str(e)
    if why:
        say("unfit", why)
        os._exit(0)
    folders = worker.temporary_folders()
    files = imports.watched_files([folder for _, folder in folders])
    before = {}
    for number in (_signal.SIGINT, _signal.SIGTERM):
        if _signal.getsignal(number) is not None:  # one that C code has set could not be given back
            before[number] = _signal.signal(number, _signal.SIG_IGN)
    collects = gc.isenabled()
    gc.disable()
    gc.freeze()  # a collection would touch, and so copy, what is shared
    worker.show(["vigil fork server (%s)" % ", ".join(names)], None)
    say("ready", *names)
    while True:
        control = next_request(folders)
        try:
            why = fitness.unfit([SOCKET.fileno(), control])
            pid = -1 if why else fork_twice()
            if pid == 0:
                SOCKET.close()
                return worker.become(control, before, collects, files, folders, given)
            say(*(("unfit", why) if why else ("pid", str(pid))))
        except OSError as e:
            say("error", "fork: %s" % e.strerror)
        os.close(control)


def next_request(folders):
    flags = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)
    word, ancillary, _, _ = SOCKET.recvmsg(64, _socket.CMSG_LEN(4), flags)
    if not word:  # the service has gone, or needs no more workers
        for remove, _ in folders:
            remove()
        os._exit(0)
    return memoryview(ancillary[0][2]).cast("i")[0]


def fork_twice():
    """Fork a worker whose parent has ended, so that it falls to the service. Returns its pid, and 0 in it."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    out, into = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
            if pid > 0:
                os.write(into, b"%d" % pid)
        except BaseException:
            os._exit(1)
        if pid > 0:
            os._exit(0)
        os.close(out)
        os.close(into)
        return 0
    os.close(into)
    try:
        word = os.read(out, 32)
    finally:
        os.close(out)
        os.waitpid(between, 0)  # when it can be waited for, its child has a new parent
    if not word:
        raise OSError(11, "no worker came of it")
    return int(word)
