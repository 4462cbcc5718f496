"""What a program under vigil says and hears. Nothing here needs vigil: without it, words go nowhere.

Nothing here waits for long. say() never raises; controller() raises OSError.
"""

import json
import os
import socket
import tempfile

import web


def say(*lines):
    """Send lines of KEY=VALUE to vigil, such as X_VIGIL_STEP=7."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.setblocking(False)
            s.sendto("\n".join(lines).encode("utf-8", "replace"), "\0" + path[1:] if path[0] == "@" else path)
    except OSError:
        pass  # a word that is lost is followed by others


def peers(role):
    """The workers of a role as vigil sees them now: rank, url, state and life of each. A worker that
    was replaced may have another port, so ask again whenever a connection fails."""
    try:
        with open(os.environ.get("VIGIL_PEERS_FILE", ""), encoding="utf-8") as f:
            found = json.load(f)["roles"].get(role, [])
    except (OSError, ValueError, KeyError):
        return []  # not written yet
    return [
        {"rank": w["rank"], "url": "http://%s:%d" % (w["address"], w["ports"]["http"]), "state": w["state"], "life": w["life"]}
        for w in found
        if "http" in w["ports"]
    ]


def controller(path, body=None):
    """POST to the controller, such as /engine/admit?worker=1; with the token in VIGIL_CONTROLLER_TOKEN
    where the address has no secret in it. OSError says that it did not do it."""
    url = os.environ.get("VIGIL_CONTROLLER_URL", "")
    if not url:
        return
    status, answer = web.ask("POST", url + path, body, token=os.environ.get("VIGIL_CONTROLLER_TOKEN", ""))
    if status != 200:
        raise OSError("%s: %s %s" % (path, status, answer.get("detail", "")))


def folder():
    """Where the job keeps its files: ENGINES_DIR, or one of this run's own."""
    life = os.environ.get("VIGIL_LIFE") or os.environ.get("VIGIL_WORKER_LIFE", "")  # a hook is no worker
    uid = life.split("/")[0] or "alone"
    path = os.environ.get("ENGINES_DIR") or os.path.join(tempfile.gettempdir(), "engines-%d-%s" % (os.getuid(), uid))
    os.makedirs(path, exist_ok=True)
    return path


def asked(name):
    """Whether somebody has put a file of this name into the folder. It is taken away: each is obeyed
    once, by one life."""
    try:
        os.unlink(os.path.join(folder(), name))
        return True
    except FileNotFoundError:
        return False


def write(name, text):
    """Write a file of the folder, whole or not at all."""
    path = os.path.join(folder(), name)
    with open(path + ".new", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".new", path)
