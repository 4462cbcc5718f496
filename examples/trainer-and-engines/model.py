"""A language model of the smallest kind: for each prompt "A+B=", how likely each digit is.

Weights are {prompt: [logit of each digit]}, plain JSON.
"""

import math
import random

PROMPTS = ["%d+%d=" % (a, b) for a in range(5) for b in range(5)]


def untrained():
    """Weights that know nothing."""
    return {p: [0.0] * 10 for p in PROMPTS}


def chances(logits):
    """How likely each digit is."""
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    return [w / sum(weights) for w in weights]


def complete(weights, prompt, seed, n):
    """N completions of a prompt: the same for the same weights, prompt and seed."""
    chance = random.Random("%s/%s" % (prompt, seed))
    return [str(digit) for digit in chance.choices(range(10), chances(weights[prompt]), k=n)]


def reward(prompt, text):
    """1 for the right sum, else 0."""
    a, b = prompt.rstrip("=").split("+")
    return 1.0 if text == str(int(a) + int(b)) else 0.0


def learn(weights, prompt, texts, rate):
    """One step of policy gradient on the completions of one prompt, each against their mean: new
    logits of the prompt."""
    rewards = [reward(prompt, t) for t in texts]
    mean = sum(rewards) / len(rewards)
    logits, now = list(weights[prompt]), chances(weights[prompt])
    for text, won in zip(texts, rewards):
        for digit in range(10):
            logits[digit] += rate * (won - mean) * ((text == str(digit)) - now[digit])
    return logits
