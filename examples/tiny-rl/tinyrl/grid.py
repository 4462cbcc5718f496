"""The environment: a 5 by 5 field with a goal in one corner, a pit in the middle and slippery ground."""

SIDE = 5
STATES = SIDE * SIDE
GOAL = STATES - 1
PIT = STATES // 2
MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))
ACTIONS = len(MOVES)
LIMIT = 25  # steps of an episode
SLIP = 0.1  # how often the ground decides instead of the agent


def start(chance):
    """A state to begin in."""
    while True:
        state = chance.randrange(STATES)
        if state not in (GOAL, PIT):
            return state


def move(state, action, chance):
    """The state after an action, its reward, and whether the episode is over."""
    if chance.random() < SLIP:
        action = chance.randrange(ACTIONS)
    row, column = divmod(state, SIDE)
    row = min(max(row + MOVES[action][0], 0), SIDE - 1)
    column = min(max(column + MOVES[action][1], 0), SIDE - 1)
    state = row * SIDE + column
    if state == GOAL:
        return state, 1.0, True
    if state == PIT:
        return state, -1.0, True
    return state, -0.04, False
