"""advantages: computes how much better each action was than expected (generalised advantage
estimation, Schulman et al. 2016), normalised over the batch. A step is a batch."""

import math

from tinyrl import say
from tinyrl.life import run
from tinyrl.store import Store

DISCOUNT = 0.98
TRACE = 0.95


def judge(episode):
    """The advantage of every action of an episode."""
    out, later, ahead = [], 0.0, 0.0
    for reward, worth in zip(reversed(episode["rewards"]), reversed(episode["worth"])):
        surprise = reward + DISCOUNT * ahead - worth
        later = surprise + DISCOUNT * TRACE * later
        out.append(later)
        ahead = worth
    return out[::-1]


def normalise(lists):
    """Shift and scale to mean 0 and deviation 1 over all lists."""
    flat = [x for one in lists for x in one]
    mean = sum(flat) / max(len(flat), 1)
    spread = math.sqrt(sum((x - mean) ** 2 for x in flat) / max(len(flat), 1)) + 1e-6
    return [[(x - mean) / spread for x in one] for one in lists]


def main(life):
    """Judge batches until stopped."""
    store = Store()
    say.ready()
    step = life.resume
    while True:
        batch = store.take("valued")
        if batch is None:
            continue
        judged = normalise([judge(e) for e in batch["episodes"]])
        for e, advantages in zip(batch["episodes"], judged):
            e["advantages"] = advantages
        store.put("judged", batch)
        step += 1
        say.step(step)


if __name__ == "__main__":
    run("advantages", main)
