"""Writes dumps as NCCL's flight recorder writes them, in its format 2.4 and pickle protocol 2.

    python3 make.py

rank_0 and rank_1 are of a world of two: rank 0 waits in all_reduce #42, which rank 1 has not
entered. code is a pickle that would run a program if somebody loaded it.
"""

import os
import pickle

SECOND = 10**9
WRITTEN = 1_700_000_100 * SECOND  # the time that a test gives to the files
FRAMES = [{"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "line": 2696},
          {"name": "step", "filename": "train.py", "line": 7}]


def entry(record, seq, op, state, age):
    created = WRITTEN - int(age * SECOND)
    return {
        "frames": list(FRAMES), "record_id": record, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:" + op,
        "time_created_ns": created, "duration_ms": 0.25, "input_sizes": [[1024, 1024], [3]],
        "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]], "output_dtypes": ["Float"],
        "state": state, "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 1 if state == "completed" else None,
        "retired": state == "completed", "timeout_ms": 600000, "is_p2p": False,
    }


def dump(entries):
    last = entries[-1]["collective_seq_id"]
    return {
        "version": "2.4",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": 41}},
        "nccl_comm_state": {"0xabc": {"rank": "0", "nRanks": "2"}},
        "entries": entries,
    }


class Code:
    def __reduce__(self):
        return os.system, ("touch /tmp/a-dump-was-run",)


def write(name, value):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), name), "wb") as f:
        pickle.dump(value, f, protocol=2)


done = [entry(i, i + 39, "all_reduce", "completed", 20 - i) for i in range(3)]
write("rank_0", dump(done + [entry(3, 42, "all_reduce", "scheduled", 14)]))
write("rank_1", dump(done))
write("code", {"version": "2.4", "entries": [Code()]})
