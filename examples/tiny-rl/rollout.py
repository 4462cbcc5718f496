"""rollout: plays episodes with the newest policy. A step is a batch of episodes."""

from tinyrl import grid, policy, say
from tinyrl.life import run
from tinyrl.store import Store

EPISODES = 16  # of a batch


def episode(table, chance):
    """One episode: what was seen, done and earned."""
    state = grid.start(chance)
    states, actions, rewards, over = [], [], [], False
    while not over and len(states) < grid.LIMIT:
        action = policy.pick(table[state], chance)
        states.append(state)
        actions.append(action)
        state, reward, over = grid.move(state, action, chance)
        rewards.append(reward)
    return {"states": states, "actions": actions, "rewards": rewards}


def main(life):
    """Play until stopped."""
    store = Store()
    say.ready()
    step = life.resume
    while True:
        newest = store.value("policy")
        if newest is None:
            continue
        chance = life.chance(step)
        episodes = [episode(newest["table"], chance) for _ in range(EPISODES)]
        store.put("episodes", {"policy": newest["step"], "episodes": episodes})
        step += 1
        say.step(step)


if __name__ == "__main__":
    run("rollout", main)
