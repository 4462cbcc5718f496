"""The callbacks for frameworks, with stand-ins that call as the frameworks do, and with the real ones."""

import importlib.util
import types
from unittest import mock
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from test_channel import Case  # noqa: E402

from vigil.integrations import huggingface, lightning, pytorch  # noqa: E402


def module(name: str, **content: object) -> types.ModuleType:
    m = types.ModuleType(name)
    m.__dict__.update(content)
    return m


class HuggingFace(Case):
    """transformers.Trainer calls on_X(args, state, control, **kwargs) and takes the control returned."""

    def setUp(self) -> None:
        super().setUp()
        fake = module("transformers", TrainerCallback=type("TrainerCallback", (), {}))
        with mock.patch.dict(sys.modules, transformers=fake):
            self.callback = huggingface.vigil_callback()

    def call(self, name: str, step: int) -> types.SimpleNamespace:
        self.clock.now += 1
        control = types.SimpleNamespace(should_save=False, should_training_stop=False)
        given = getattr(self.callback, name)(None, types.SimpleNamespace(global_step=step), control, model=None)
        return given or control

    def test_steps_and_checkpoints_are_said(self) -> None:
        for name, step in (("on_train_begin", 0), ("on_substep_end", 0), ("on_step_end", 1), ("on_prediction_step", 1), ("on_save", 1)):
            self.call(name, step)
        self.assertEqual(["X_VIGIL_STEP=0", "WATCHDOG=1", "X_VIGIL_STEP=1", "WATCHDOG=1", "X_VIGIL_CHECKPOINT=1"], self.service.heard())

    def test_a_wanted_end_saves_and_stops(self) -> None:
        self.assertFalse(self.call("on_step_end", 1).should_training_stop)
        self.service.order("STOP=1")
        control = self.call("on_step_end", 2)
        self.assertTrue(control.should_training_stop and control.should_save)


class Lightning(Case):
    def setUp(self) -> None:
        super().setUp()
        fake = module("pytorch_lightning", Callback=type("Callback", (), {}))
        hidden = {"lightning": None, "lightning.pytorch": None, "pytorch_lightning": fake}
        with mock.patch.dict(sys.modules, hidden):  # type: ignore[arg-type]
            self.callback = lightning.vigil_callback()
        self.trainer = types.SimpleNamespace(global_step=0, should_stop=False)

    def call(self, name: str, *args: object) -> None:
        self.clock.now += 1
        getattr(self.callback, name)(self.trainer, None, *args)

    def test_steps_evaluation_and_checkpoints_are_said_when_they_are_true(self) -> None:
        self.call("on_train_start")
        self.trainer.global_step = 1
        self.call("on_train_batch_end", None, None, 0)
        self.call("on_validation_start")
        self.call("on_validation_batch_end", None, None, 0)
        self.call("on_validation_end")
        self.call("on_save_checkpoint", {})
        self.trainer.global_step = 2
        self.call("on_train_batch_end", None, None, 1)
        self.call("on_save_checkpoint", {})
        self.call("on_fit_end")
        self.assertEqual(
            ["X_VIGIL_STEP=0", "X_VIGIL_STEP=1", "X_VIGIL_PHASE=+eval", "WATCHDOG=1", "X_VIGIL_PHASE=-eval",
             "X_VIGIL_CHECKPOINT=1", "X_VIGIL_STEP=2", "X_VIGIL_CHECKPOINT=2"], self.service.heard())

    def test_an_exception_closes_the_evaluation_and_is_reported(self) -> None:
        self.call("on_validation_start")
        self.call("on_exception", ValueError("bad batch"))
        self.call("on_exception", KeyboardInterrupt())
        self.assertEqual(["X_VIGIL_PHASE=+eval", "X_VIGIL_PHASE=-eval", "X_VIGIL_ERROR=ValueError: bad batch"], self.service.heard())

    def test_a_wanted_end_stops_the_trainer(self) -> None:
        self.call("on_train_start")
        self.service.order("STOP=1")
        self.call("on_train_batch_end", None, None, 0)
        self.assertTrue(self.trainer.should_stop)


class PyTorch(Case):
    def test_the_loop_counts_speaks_takes_orders_and_ends(self) -> None:
        seen = []
        for step, batch in pytorch.steps("abcdef", start=10):
            seen.append((step, batch))
            self.clock.now += 1
            if batch == "b":
                self.service.order("SET_STEP=500 SEQ=1")
            if batch == "d":
                self.service.order("STOP=1")
        self.assertEqual([(10, "a"), (11, "b"), (500, "c"), (501, "d")], seen)
        self.assertIn("X_VIGIL_ACK=1", self.service.heard())

    def test_it_begins_where_vigil_says(self) -> None:
        with mock.patch.dict(os.environ, VIGIL_RESUME_STEP="7"):
            self.assertEqual([(7, "a")], list(pytorch.steps("a")))


@unittest.skipUnless(importlib.util.find_spec("transformers"), "SKIPPED: transformers is not installed")
class RealTrainer(Case):
    def test_a_real_trainer_speaks(self) -> None:
        import tempfile

        import torch
        import transformers  # type: ignore[import-not-found,unused-ignore]

        class Line(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.line = torch.nn.Linear(1, 1)

            def forward(self, x: "torch.Tensor", labels: "torch.Tensor") -> "dict[str, torch.Tensor]":
                return {"loss": ((self.line(x) - labels) ** 2).mean()}

        data = [{"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(8)]
        with tempfile.TemporaryDirectory() as folder:
            args = transformers.TrainingArguments(output_dir=folder, max_steps=4, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True)
            transformers.Trainer(model=Line(), args=args, train_dataset=data, callbacks=[huggingface.vigil_callback()]).train()
        self.channel.finish()
        said = self.service.heard()
        self.assertIn("X_VIGIL_STEP=4", said)
        self.assertIn("X_VIGIL_CHECKPOINT=4", said)


@unittest.skipUnless(importlib.util.find_spec("lightning") or importlib.util.find_spec("pytorch_lightning"), "SKIPPED: Lightning is not installed")
class RealLightning(Case):
    def test_a_real_fit_speaks(self) -> None:
        import tempfile

        import torch

        try:
            import lightning.pytorch as pl  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            import pytorch_lightning as pl  # type: ignore[import-not-found,unused-ignore]

        class Line(pl.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.line = torch.nn.Linear(1, 1)

            def training_step(self, batch: "torch.Tensor", index: int) -> "torch.Tensor":
                return (self.line(batch) - 2 * batch).pow(2).mean()

            def configure_optimizers(self) -> "torch.optim.Optimizer":
                return torch.optim.SGD(self.parameters(), lr=0.01)

        loader = torch.utils.data.DataLoader(torch.arange(8.0).reshape(8, 1), batch_size=2)
        with tempfile.TemporaryDirectory() as folder:
            pl.Trainer(default_root_dir=folder, max_steps=4, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
                       callbacks=[lightning.vigil_callback()]).fit(Line(), loader)
        self.channel.finish()
        said = self.service.heard()
        self.assertIn("X_VIGIL_STEP=4", said)
        self.assertIn("X_VIGIL_CHECKPOINT=4", said)


del Case  # it would be run again here

if __name__ == "__main__":
    unittest.main()
