"""A small language model, trained with DistributedDataParallel over gloo, on CPUs.

It needs what torchrun gives a worker (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) and nothing else, so
torchrun and vigil run it alike. Rank 0 saves a checkpoint every so many steps; every rank begins at the
newest one. What a rank draws depends on the step and the rank only, so a run that was interrupted takes
the same way as one that was not.
"""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 16  # characters that the next one is guessed from
BATCH = 32  # of each rank


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", default=os.environ.get("DDP_DIR", "/tmp/pytorch-ddp-%d" % os.getuid()), help="folder of the checkpoint (default $DDP_DIR, else %(default)s)")
    p.add_argument("--steps", type=int, default=int(os.environ.get("DDP_STEPS", 1000)), help="default $DDP_STEPS, else %(default)s")
    p.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    p.add_argument("--pace", type=float, default=float(os.environ.get("DDP_PACE", 0.03)), help="seconds that a step takes at least (default $DDP_PACE, else %(default)s)")
    p.add_argument("--raise-at", type=int, default=int(os.environ.get("DDP_RAISE_AT", -1)), help="to try it: the last rank raises an exception at this step, unless it was restarted")
    return p.parse_args()


class Listener:
    """Whoever supervises this process, if anybody does: sd_notify's convention, see docs/guides/first-job.md."""

    EVERY = 0.05  # seconds between two heartbeats

    def __init__(self):
        self.address, self.said = os.environ.get("NOTIFY_SOCKET"), 0.0
        if self.address:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.socket.setblocking(False)

    def tell(self, text):
        if not self.address:
            return
        try:
            self.socket.sendto(text.encode(), self.address)
        except OSError:
            pass  # nobody listens, or not now: training goes on

    def step(self, step):
        now = time.monotonic()
        if now - self.said >= self.EVERY:
            self.said = now
            self.tell("X_VIGIL_STEP=%d" % step)

    def saved(self, step):
        self.tell("X_VIGIL_CHECKPOINT=%d" % step)


class Text:
    """The text that is learned: this file."""

    def __init__(self):
        with open(os.path.abspath(__file__), encoding="utf-8") as f:
            text = f.read()
        letters = sorted(set(text))
        self.letters = len(letters)
        self.codes = torch.tensor([letters.index(c) for c in text])

    def batch(self, step, rank):
        chance = torch.Generator().manual_seed(step * 1000 + rank)
        at = torch.randint(0, len(self.codes) - CONTEXT, (BATCH,), generator=chance)
        return self.codes[at[:, None] + torch.arange(CONTEXT)], self.codes[at + CONTEXT]


def make_model(letters):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Embedding(letters, 8),
        torch.nn.Flatten(),
        torch.nn.Linear(CONTEXT * 8, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, letters),
    )


class Checkpoint:
    """One file, whole or not there at all."""

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, "checkpoint.pt")

    def save(self, step, model, optimizer):
        new = self.path + ".new"  # only rank 0 saves
        with open(new, "wb") as f:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(new, self.path)

    def load(self, model, optimizer):
        """The step that was saved; 0 without a checkpoint."""
        if not os.path.exists(self.path):
            return 0
        saved = torch.load(self.path, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return saved["step"]


def mean(loss, world):
    """The mean of a loss over all ranks."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / world


def train(args, rank, world):
    text, listener, checkpoint = Text(), Listener(), Checkpoint(args.dir)
    model = make_model(text.letters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = checkpoint.load(model, optimizer)
    if rank == 0:
        print("begins at step %d with %d ranks" % (first, world))
    model = DistributedDataParallel(model)
    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    for step in range(first + 1, args.steps + 1):
        began = time.monotonic()
        letters, following = text.batch(step, rank)
        loss = torch.nn.functional.cross_entropy(model(letters), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = mean(loss, world)
        if rank == 0:
            print("step %d loss %.6f" % (step, loss))
            if step % args.every == 0:
                checkpoint.save(step, model.module, optimizer)
                listener.saved(step)
        listener.step(step)
        if step == args.raise_at and rank == world - 1 and not restarted:
            raise RuntimeError("loss is NaN at step %d, as you asked" % step)
        time.sleep(max(0.0, args.pace - (time.monotonic() - began)))


@record  # an exception goes to the file that torchrun, or vigil, reads
def main():
    args = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(args, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
