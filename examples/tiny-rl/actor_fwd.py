"""actor_fwd: a copy of the actor that only looks: how likely was each action under the newest
policy? A step is a batch."""

from tinyrl import policy, say
from tinyrl.life import run
from tinyrl.store import Store


def main(life):
    """Look at batches until stopped."""
    store = Store()
    say.ready()
    step = life.resume
    while True:
        batch = store.take("judged")
        if batch is None:
            continue
        newest = None
        while newest is None:
            newest = store.value("policy")
        for e in batch["episodes"]:
            pairs = zip(e["states"], e["actions"])
            e["logs"] = [policy.log_chance(newest["table"][s], a) for s, a in pairs]
        store.put("ready", batch)
        step += 1
        say.step(step)


if __name__ == "__main__":
    run("actor_fwd", main)
