"""Breaks the program that it is loaded into when SIGUSR1 says so, in the way that the file SOAK_DOOR/ROLE.RANK
names: VERB, or VERB VALUE. Python imports it at its start, from the first folder of PYTHONPATH."""

import os
import signal
import subprocess
import threading
import time


def _raise(text):
    raise RuntimeError(text)


def _leave(code):
    os._exit(int(code))


def _hang(say):
    """A deadlock of the main thread, while another thread, which does not end, lives on and says so."""
    lock = threading.Lock()
    lock.acquire()

    def live():
        while True:
            say()
            time.sleep(0.5)

    threading.Thread(target=live).start()
    lock.acquire()


def _print():
    os.write(1, b"still here\n")


def _deadlock(_):
    _hang(_print)


def _beat(phase):
    """The same within a phase, and the living thread tells the supervisor that all is well."""
    import socket

    voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    voice.setblocking(False)

    def tell(text):
        try:
            voice.sendto(text, os.environ["NOTIFY_SOCKET"])
        except OSError:
            pass

    tell(b"X_VIGIL_PHASE=+" + phase.encode())
    _hang(lambda: tell(b"WATCHDOG=1"))


def _slow(seconds):
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        time.sleep(0.05)


def _flood(count):
    """So many bytes of output: lines, and half of it a line without an end, not UTF-8."""
    text = b"a line of a flood of output, of which nobody wants to know anything at all\n" * 800
    for _ in range(int(count) // 2 // len(text)):
        os.write(2, text)
    for _ in range(int(count) // 2 // 60000):
        os.write(2, b"\xff\x00ab" * 15000)


def _daemon(_):
    """A process in a session of its own that does not end on SIGTERM."""
    deaf = "trap '' TERM INT HUP; while :; do sleep 1000; done"
    subprocess.call(["sh", "-c", 'setsid sh -c "$1" </dev/null >/dev/null 2>&1 &', "sh", deaf])


def _eat(count):
    eaten = []
    for _ in range(int(count) >> 20):
        eaten.append(b"x" * (1 << 20))


_VERBS = {"raise": _raise, "exit": _leave, "deadlock": _deadlock, "beat": _beat, "slow": _slow, "flood": _flood, "daemon": _daemon, "eat": _eat}


def _open(number, frame):
    del number, frame
    path = os.path.join(os.environ["SOAK_DOOR"], "%s.%s" % (os.environ["VIGIL_ROLE"], os.environ["VIGIL_RANK"]))
    with open(path, encoding="utf-8") as f:
        verb, _, value = f.read().partition(" ")
    _VERBS[verb](value)


if "SOAK_DOOR" in os.environ and "VIGIL_RANK" in os.environ:
    signal.signal(signal.SIGUSR1, _open)
