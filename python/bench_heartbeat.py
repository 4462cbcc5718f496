"""What heartbeat() costs in a loop of 1 ms steps, and when the service is stopped.

    python3 python/bench_heartbeat.py [SECONDS]

Prints a table: the average time in heartbeat() in µs (target: under 2), by how much 1 ms steps are slowed in
percent (target: under 1), and the longest heartbeat() in ms while nobody reads the socket. The first two are
measured twice, side by side: as processor time of this thread, which is what a heartbeat costs, and by the wall
clock, which on a busy machine holds what other programs took as well.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Callable, Dict, Optional

Clock = Callable[[], int]  # in nanoseconds

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "src"), os.path.join(HERE, "tests")]

from service import Service  # noqa: E402

from vigil import _api  # noqa: E402
from vigil._channel import Channel  # noqa: E402


def calibrate() -> int:
    """Return how many turns of work() take 1 ms here."""
    n = 1000
    while True:
        best = min(timed(lambda: work(n)) for _ in range(5))
        if best > 0.001:
            return max(1, int(n * 0.001 / best))
        n *= 2


def work(turns: int) -> float:
    x = 0.5
    for _ in range(turns):
        x = 3.9 * x * (1 - x)
    return x


def timed(do: Callable[[], object], clock: Clock = time.perf_counter_ns) -> float:
    begin = clock()
    do()
    return (clock() - begin) / 1e9


def average_cost(service: Service, turns: int, seconds: float, clock: Clock) -> float:
    """Return the average seconds in heartbeat() by a clock, without what reading that takes."""
    heartbeat = _api.heartbeat
    spent = empty = 0
    steps = max(int(seconds * 1000), 100)
    for step in range(steps):
        work(turns)
        a = clock()
        b = clock()
        heartbeat(step)
        c = clock()
        if step % 50 == 49:
            service.heard()
        empty += b - a
        spent += c - b
    return max(spent - empty, 0) / steps / 1e9


def slowdown(turns: int, seconds: float, clock: Clock) -> float:
    """Return by what part steps with a heartbeat take longer than steps without, by a clock."""
    block = 50
    beat: Optional[Callable[[int], None]] = None

    def steps() -> None:
        for step in range(block):
            work(turns)
            if beat is not None:
                beat(step)

    pairs = []
    for _ in range(max(int(seconds * 1000 / block / 2), 5)):
        beat = None
        without = timed(steps, clock)
        beat = _api.heartbeat
        pairs.append(timed(steps, clock) / without - 1)
    return statistics.median(pairs)


def longest_when_stopped() -> float:
    """Return the longest heartbeat() in seconds when the queue is full, with every step due."""
    longest = 0.0
    for step in range(5000):
        _api.channel().set_due(0.0)
        longest = max(longest, timed(lambda: _api.heartbeat(step)))
    return longest


def measure(seconds: float) -> Dict[str, float]:
    """Return the figures by name, in the unit that ends it: us, percent, ms."""
    before = _api.channel()
    service = Service()
    try:
        _api.use(Channel(service.environ()))
        turns = calibrate()
        out = {}
        for name, clock in (("cpu", time.thread_time_ns), ("wall", time.perf_counter_ns)):
            out["average_%s_us" % name] = average_cost(service, turns, seconds / 4, clock) * 1e6
            service.heard()
        for name, clock in (("cpu", time.thread_time_ns), ("wall", time.perf_counter_ns)):
            out["slowed_%s_percent" % name] = slowdown(turns, seconds / 4, clock) * 100
            service.heard()
        out["stopped_longest_ms"] = longest_when_stopped() * 1e3
        return out
    finally:
        _api.channel().abandon()
        _api.use(before)
        service.close()


if __name__ == "__main__":
    figures = measure(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0)
    targets = {"us": ("µs", "< 2"), "percent": ("%", "< 1"), "ms": ("ms", "")}
    for name, figure in figures.items():
        unit, target = targets[name.rpartition("_")[2]]
        print("%-20s %8.3f %-3s %s" % (name, figure, unit, target))
