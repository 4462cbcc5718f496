"""critic: learns what each state is worth and says it of every state of a batch. A step is a batch."""

import os

from tinyrl import grid, say
from tinyrl.checkpoint import Checkpoints
from tinyrl.life import run
from tinyrl.store import Store

DISCOUNT = 0.98
RATE = 0.05
SAVE_EVERY = 10  # batches


def learn(worth, batch):
    """Move the worth of every state seen towards what was earned from there on; the mean squared
    error before. Returns (new worth, error)."""
    new, error, count = worth[:], 0.0, 0
    for e in batch["episodes"]:
        earned = 0.0
        for state, reward in zip(reversed(e["states"]), reversed(e["rewards"])):
            earned = reward + DISCOUNT * earned
            off = earned - new[state]
            error, count = error + off * off, count + 1
            new[state] += RATE * off
    return new, error / max(count, 1)


def main(life):
    """Judge batches until stopped."""
    store = Store()
    saved = Checkpoints(os.path.join(life.dir, "critic"))
    step, worth = saved.load(life.resume)
    if worth is None:
        step, worth = life.resume, [0.0] * grid.STATES
    else:
        life.print("resumed from checkpoint %d (asked for %d)" % (step, life.resume))
    say.ready()
    while True:
        batch = store.take("episodes")
        if batch is None:
            continue
        for e in batch["episodes"]:
            e["worth"] = [worth[s] for s in e["states"]]
        store.put("valued", batch)
        with life.steady():
            worth, error = learn(worth, batch)
            step += 1
            say.step(step)
            if step % SAVE_EVERY == 0:
                saved.save(step, worth)
                say.checkpoint(step)
                life.print("step %d loss %.4f" % (step, error))


if __name__ == "__main__":
    run("critic", main)
