"""What the programs of the tiny-rl job share: standard library only, Python 3.9 or newer."""
