"""A softmax policy: a table of one number per state and action."""

import math

from tinyrl import grid


def untrained():
    """A policy that takes every action alike."""
    return [[0.0] * grid.ACTIONS for _ in range(grid.STATES)]


def chances(row):
    """How likely each action is, given one row of the table."""
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    total = sum(weights)
    return [w / total for w in weights]


def pick(row, chance):
    """An action."""
    u = chance.random()
    for action, c in enumerate(chances(row)):
        u -= c
        if u < 0:
            return action
    return len(row) - 1


def log_chance(row, action):
    """The logarithm of how likely an action is."""
    return math.log(max(chances(row)[action], 1e-12))


def improve(table, samples, rate, clip=0.2):
    """One step of the clipped policy gradient (PPO, Schulman et al. 2017) over samples of (state,
    action, log chance when it was taken, advantage). Returns a new table."""
    new = [row[:] for row in table]
    for state, action, was, advantage in samples:
        now = chances(table[state])
        ratio = math.exp(math.log(max(now[action], 1e-12)) - was)
        if (ratio > 1 + clip and advantage > 0) or (ratio < 1 - clip and advantage < 0):
            continue
        for a in range(grid.ACTIONS):
            slope = (1.0 if a == action else 0.0) - now[a]
            new[state][a] += rate * ratio * advantage * slope / len(samples)
    return new
