"""torchrun of whatever PyTorch this interpreter has, with what a distribution's build may have broken.

Debian bookworm's PyTorch 1.13 on Python 3.11 looks up the redirect setting "0" by iterating an
IntFlag, which since Python 3.11 leaves the zero member out, and so ends before it starts a worker.
PyTorch 2.4 and newer open a store with libuv by default, also where they were built without it.
"""
import os
import sys

from torch.distributed.elastic.multiprocessing import api

std_from_str = api.Std.from_str.__func__
api.Std.from_str = classmethod(lambda cls, value: cls.NONE if value == "0" else std_from_str(cls, value))

import torch.distributed as dist

if os.environ.get("USE_LIBUV") == "0" and "libuv" in (dist.TCPStore.__init__.__doc__ or ""):

    class TCPStore(dist.TCPStore):
        def __init__(self, *args, **kwargs):
            kwargs.setdefault("use_libuv", False)
            super().__init__(*args, **kwargs)

    import torch.distributed.rendezvous  # noqa: F401
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, static_tcp_rendezvous

    # By name: the package also exports a function called rendezvous.
    for module in (dist, sys.modules["torch.distributed.rendezvous"], c10d_rendezvous_backend, static_tcp_rendezvous):
        module.TCPStore = TCPStore

from torch.distributed.run import main

sys.exit(main())
