"""A stand-in for the service: it hears what a worker says and gives it orders."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Any, Dict, List

SOURCE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")


class Service:
    """Both sockets of one worker life, in a folder of their own."""

    def __init__(self) -> None:
        self.dir = tempfile.mkdtemp(prefix="vp", dir="/tmp")
        self.up = os.path.join(self.dir, "u")
        self.inbox = os.path.join(self.dir, "i")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.up)
        self.socket.setblocking(False)

    def environ(self, **more: str) -> Dict[str, str]:
        return dict(more, NOTIFY_SOCKET=self.up, VIGIL_INBOX=self.inbox)

    def heard(self) -> List[str]:
        """What has been said since the last call, a datagram each."""
        said = []
        while True:
            try:
                said.append(self.socket.recv(1 << 16).decode())
            except BlockingIOError:
                return said

    def order(self, text: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(text.encode(), self.inbox)

    def close(self) -> None:
        self.socket.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def run(self, program: str, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run a program as a worker of this service to its end."""
        return run(program, **self.environ(**more))


def run(program: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that can import the package to its end."""
    env: Dict[str, Any] = {k: v for k, v in os.environ.items() if not k.startswith(("VIGIL_", "NOTIFY_", "TORCHELASTIC_"))}
    env.update(more, PYTHONPATH=os.pathsep.join(filter(None, [more.get("PYTHONPATH"), SOURCE])))
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
