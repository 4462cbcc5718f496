"""For a loop that is written by hand."""

from __future__ import annotations

from typing import Iterable, Iterator, Optional, Tuple, TypeVar

import vigil

T = TypeVar("T")


def steps(batches: Iterable[T], start: Optional[int] = None) -> Iterator[Tuple[int, T]]:
    """Yield (step, batch) for every batch, with a heartbeat after each step.

        for step, batch in steps(loader, start=loaded.step):
            train(batch)

    Start is the number of the first step, by default vigil.resume_step(). A step that is set from outside
    is where the count goes on. The loop ends early when vigil asks the worker to end.
    """
    step = vigil.resume_step() if start is None else start
    for batch in batches:
        yield step, batch
        vigil.heartbeat(step)
        ordered = vigil.pending_step()
        step = step + 1 if ordered is None else ordered
        if vigil.should_stop():
            return
