"""Steps ten times a second if it can: each step costs a few milliseconds of CPU, at the lowest priority. Gaps
of more than a second between two steps are noted in the file GAPS.RANK, in seconds. It runs on CPUS only."""

import os
import socket
import time

os.nice(19)
os.sched_setaffinity(0, {int(cpu) for cpu in os.environ["CPUS"].split(",")})
try:
    # Where sessions share the CPUs (sched(7), autogroup), theirs is the priority that counts.
    with open("/proc/self/autogroup", "w", encoding="ascii") as f:
        f.write("19")
except OSError:
    pass  # there are no such
voice = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
voice.setblocking(False)
step, last = int(os.environ["VIGIL_RESUME_STEP"]), time.monotonic()
with open("%s.%s" % (os.environ["GAPS"], os.environ["VIGIL_RANK"]), "a", encoding="ascii", buffering=1) as gaps:
    while True:
        worked = time.thread_time()
        while time.thread_time() - worked < 0.002:
            pass
        step += 1
        try:
            voice.sendto(b"X_VIGIL_STEP=%d" % step, os.environ["NOTIFY_SOCKET"])
        except OSError:
            pass  # nobody listens, or not now
        now = time.monotonic()
        if now - last > 1:
            gaps.write("%.3f\n" % (now - last))
        last = now
        time.sleep(0.1)
