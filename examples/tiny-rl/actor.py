"""actor: improves the policy, publishes it and saves it. A step is one update. It ends with exit
status 0 after TINY_RL_STEPS updates.

In TINY_RL_DIR it keeps actor/STEP.json, the checkpoints, and metrics.jsonl, a line for each update.
"""

import json
import os
import time

from tinyrl import policy, say
from tinyrl.checkpoint import Checkpoints, replace
from tinyrl.life import run
from tinyrl.store import Store

RATE = 8.0
SAVE_EVERY = 10  # updates


class Metrics:
    """metrics.jsonl: one line for each update of the way that led here."""

    def __init__(self, folder, step):
        self.path = os.path.join(folder, "metrics.jsonl")
        os.makedirs(folder, exist_ok=True)
        kept = [line for line in self._lines() if line["step"] <= step]
        replace(self.path, "".join(json.dumps(line) + "\n" for line in kept))

    def _lines(self):
        try:
            with open(self.path, encoding="utf-8") as f:
                for text in f:
                    try:
                        line = json.loads(text)
                        if isinstance(line["step"], int):
                            yield line
                    except (ValueError, KeyError, TypeError):
                        continue  # cut short by a crash
        except FileNotFoundError:
            return

    def add(self, step, reward, policy_step):
        """Note one update."""
        line = {"step": step, "reward": round(reward, 4), "policy": policy_step}
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(line) + "\n")


def samples(batch):
    """(state, action, log chance, advantage) of everything in a batch."""
    out = []
    for e in batch["episodes"]:
        out.extend(zip(e["states"], e["actions"], e["logs"], e["advantages"]))
    return out


def main(life):
    """Learn until the steps are done."""
    last = int(os.environ.get("TINY_RL_STEPS", "400"))
    period = float(os.environ.get("TINY_RL_PERIOD", "0.1"))
    store = Store()
    saved = Checkpoints(os.path.join(life.dir, "actor"))
    step, table = saved.load(life.resume)
    if table is None:
        step, table = life.resume, policy.untrained()
        if step > 0:
            life.print("has no checkpoint: counts on from %d with an untrained policy" % step)
    else:
        life.print("resumed from checkpoint %d (asked for %d)" % (step, life.resume))
    metrics = Metrics(life.dir, step)
    store.publish("policy", {"step": step, "table": table})
    say.ready()
    while step < last:
        began = time.monotonic()
        batch = store.take("ready")
        if batch is None:
            # The data role may be a new one that has not heard of the policy.
            store.publish("policy", {"step": step, "table": table})
            continue
        with life.steady():
            table = policy.improve(table, samples(batch), RATE)
            step += 1
            rewards = [sum(e["rewards"]) for e in batch["episodes"]]
            metrics.add(step, sum(rewards) / len(rewards), batch["policy"])
            say.step(step)
            if step % SAVE_EVERY == 0 or step == last:
                saved.save(step, table)
                say.checkpoint(step)
                life.print("step %d mean reward %.3f" % (step, sum(rewards) / len(rewards)))
        store.publish("policy", {"step": step, "table": table})
        time.sleep(max(0.0, period - (time.monotonic() - began)))
    life.print("done after %d steps" % step)


if __name__ == "__main__":
    run("actor", main)
