"""For Lightning: `Trainer(..., callbacks=[vigil_callback()])`."""

from __future__ import annotations

from typing import Any, Optional

import vigil


def _callback_class() -> Any:
    try:
        from lightning.pytorch import Callback  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from pytorch_lightning import Callback  # type: ignore[import-not-found,unused-ignore]
    return Callback


def vigil_callback() -> Any:
    """Return a Lightning Callback that speaks for the Trainer.

    Every training batch is a heartbeat with the global step, validation is the phase "eval", an exception
    in fit is reported, and when vigil asks the worker to end, the Trainer stops. A checkpoint is said at
    the next batch, when it has been written; do not use this with checkpoints that are written in the
    background. Resuming is the Trainer's own: `trainer.fit(..., ckpt_path="last")`.
    """

    class VigilCallback(_callback_class()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._eval: Optional[vigil.phase] = None
            self._saving: Optional[int] = None

        def on_train_start(self, trainer: Any, module: Any) -> None:
            vigil.heartbeat(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            self._saved()
            vigil.heartbeat(trainer.global_step)
            if vigil.should_stop():
                trainer.should_stop = True

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            if self._eval is None:
                self._eval = vigil.phase("eval").__enter__()

        def on_validation_batch_end(self, trainer: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            vigil.heartbeat()

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            self._close()

        def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
            self._saving = int(trainer.global_step)

        def on_fit_end(self, trainer: Any, module: Any) -> None:
            self._saved()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self._close()
            if isinstance(exception, Exception):
                vigil.report_error(exception)

        def _close(self) -> None:
            if self._eval is not None:
                self._eval.__exit__(None, None, None)
                self._eval = None

        def _saved(self) -> None:
            if self._saving is not None:
                vigil.checkpointed(self._saving)
                self._saving = None

    return VigilCallback()
