"""The store of torch.distributed: rank 0 listens before the others connect."""

import _socket
import sys
import time

# How long a rank waits before it lets PyTorch try, seconds.
STORE_WAIT = 10


def wait_for_listener():
    """All ranks start at one instant, and PyTorch's client waits for 0.3 to 1 s once it has found nobody: so
    ranks other than 0 look first whether rank 0's store, on this machine, listens."""
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    make = getattr(rendezvous, "_create_c10d_store", None)
    if make is None:
        return

    def _create_c10d_store(hostname, port, rank, *args, **kwargs):
        try:
            if rank != 0 and is_here(hostname):
                until = time.monotonic() + STORE_WAIT
                while not listens(port) and time.monotonic() < until:
                    time.sleep(0.002)
        except Exception:
            pass  # PyTorch will say what is wrong
        return make(hostname, port, rank, *args, **kwargs)

    _create_c10d_store.__doc__ = make.__doc__
    _create_c10d_store.__wrapped__ = make
    rendezvous._create_c10d_store = _create_c10d_store


def is_here(hostname):
    """Whether a host's address is one of this machine's: only those can be bound."""
    family, kind, _, _, address = _socket.getaddrinfo(hostname, 0, 0, _socket.SOCK_STREAM)[0]
    probe = _socket.socket(family, kind)
    try:
        probe.bind(address)
        return True
    except OSError:
        return False
    finally:
        probe.close()


def listens(port):
    """Whether somebody listens on a TCP port here, found without connecting (proc_net_tcp.txt of the kernel)."""
    wanted = b":%04X" % port
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name, "rb") as f:
                for line in f:
                    field = line.split(None, 4)
                    if field[3] == b"0A" and field[1].endswith(wanted):
                        return True
        except OSError:
            pass
    return False
