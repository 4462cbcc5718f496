"""Whether the fork server may fork: what a process cannot share, it must not have."""

import os
import time

ME = os.getpid()
# Threads that take care of forks themselves, by name. Those of OpenBLAS end in a fork's preparation and need not
# be listed.
FORK_AWARE = {"jemalloc_bg_thd"}
# Devices that hold nothing of a process.
HARMLESS = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}


def unfit(own):
    """Why a fork would give a worker less than an executed one has; empty if it would not. own are
    the descriptors of the fork server itself."""
    return children() or descriptors(own) or threads()


def children():
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ""
        if pid == 0:
            return "what was imported has started processes that still run"


def opened():
    """What is open, by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass  # it was of the listing itself
    return found


# What this process was started with, as the service's other children are.
INHERITED = opened()


def descriptors(own):
    """A device's context, a connection or an event loop cannot be shared by processes. The open descriptor is
    the proof: what a library says of itself need not be so."""
    for fd, what in opened().items():
        if fd <= 2 or fd in own or INHERITED.get(fd) == what or what in HARMLESS or what.startswith("/dev/shm/"):
            continue
        if what.startswith("/dev/") or not what.startswith("/"):
            return "what was imported holds %s open" % what
    return ""


def threads():
    """Of a process with threads only one is forked. Libraries whose threads end when a fork is prepared are told
    by a fork for nothing."""
    others = other_threads()
    if not others:
        return ""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(50):
        others = other_threads()
        if not others:
            return ""
        time.sleep(0.002)
    return "what was imported runs threads: " + ", ".join(sorted(others))


def other_threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/comm" % task) as f:
                name = f.read().strip()
        except OSError:
            continue
        if int(task) != ME and name not in FORK_AWARE:
            names.append(name)
    return names
