"""What a heartbeat costs, in processor time: other programs run on this machine, too."""

import os
import sys
import unittest
from typing import Dict

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import bench_heartbeat  # noqa: E402


class Cost(unittest.TestCase):
    def test_a_heartbeat_is_cheap_and_a_stopped_service_does_not_block_it(self) -> None:
        # The best of up to twenty: what others do to this processor's caches is not the heartbeat's cost.
        best: Dict[str, float] = {}
        for _ in range(20):
            for name, figure in bench_heartbeat.measure(0.8).items():
                best[name] = min(figure, best.get(name, figure))
            # Twice the target: a machine whose other core is busy takes that for the same work.
            if best["average_cpu_us"] < 4 and best["slowed_cpu_percent"] < 1 and best["stopped_longest_ms"] < 500:
                return
        self.fail("never in twenty measurements: %s" % best)


if __name__ == "__main__":
    unittest.main()
