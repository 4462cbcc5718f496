"""For transformers.Trainer: `Trainer(..., callbacks=[vigil_callback()])`."""

from __future__ import annotations

from typing import Any

import vigil


def vigil_callback() -> Any:
    """Return a transformers.TrainerCallback that speaks for the Trainer.

    Every optimizer step is a heartbeat, so is every step of a prediction, every checkpoint that the
    Trainer has written is said, and when vigil asks the worker to end, the Trainer saves and stops.
    Resuming is the Trainer's own: `trainer.train(resume_from_checkpoint=...)`.
    """
    from transformers import TrainerCallback  # type: ignore[import-not-found,unused-ignore]

    class VigilCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            vigil.heartbeat(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            vigil.heartbeat(state.global_step)
            if vigil.should_stop():
                control.should_save = True
                control.should_training_stop = True
            return control

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            vigil.heartbeat()

        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            vigil.heartbeat()

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            vigil.checkpointed(state.global_step)

    return VigilCallback()
