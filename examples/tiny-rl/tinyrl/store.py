"""The way to the data role: HTTP with retries, over a connection that is kept.

The address comes from VIGIL_ROLE_DATA_ADDRS and, once vigil has written it, from VIGIL_PEERS_FILE,
which is read again whenever a connection fails: a restarted data role has another port.
"""

import http.client
import json
import os
import time

from tinyrl import say

# Seconds for one request. With the longest pause after it, it is well below the 5 s that are the
# shortest limit for silence: who waits for a data role that hangs does not hang.
TIMEOUT = 2.5
LONG_POLL = 1.0  # seconds that the data role may hold a request back


def addresses(role, environ=os.environ):
    """The HOST:PORT of every worker of a role, as they are known now."""
    path = environ.get("VIGIL_PEERS_FILE", "")
    try:
        with open(path, encoding="utf-8") as f:
            peers = json.load(f)
        found = _addresses_of(peers.get("roles", peers).get(role))
        if found:
            return found
    except (OSError, ValueError, AttributeError):
        pass  # not written yet, or without this role
    listed = environ.get("VIGIL_ROLE_%s_ADDRS" % role.upper(), "")
    return [a.strip() for a in listed.split(",") if a.strip()]


def _addresses_of(workers):
    """Reads one role of the peers file: a list of HOST:PORT, or of objects with an address."""
    if isinstance(workers, dict):
        workers = workers.get("workers")
    if isinstance(workers, str):
        workers = workers.split(",")
    out = []
    for w in workers or []:
        if isinstance(w, str):
            out.append(w)
            continue
        if w.get("state") == "down":
            continue
        address, ports = w.get("address") or "127.0.0.1", w.get("ports") or {}
        if ports and ":" not in address:
            address = "%s:%d" % (address, ports.get("http") or sorted(ports.values())[0])
        if ":" in address:
            out.append(address)
    return out


class Store:
    """Queues and values that the data role keeps. Every call comes back with an answer, however
    often the data role is restarted meanwhile, and tells vigil that it waits."""

    def __init__(self):
        self._connection = None

    def put(self, queue, item):
        """Append to a bounded queue; wait while it is full."""
        body = json.dumps(item).encode()
        while self._call("POST", "/queue/%s?wait=%g" % (queue, LONG_POLL), body)[0] != 204:
            say.alive("queue %s is full" % queue)

    def take(self, queue):
        """The oldest item of a queue, or None after about a second without one."""
        status, body = self._call("GET", "/queue/%s?wait=%g" % (queue, LONG_POLL), None)
        if status == 200:
            return json.loads(body)
        say.alive("queue %s is empty" % queue)
        return None

    def publish(self, name, value):
        """Replace a value."""
        self._call("PUT", "/value/" + name, json.dumps(value).encode())

    def value(self, name):
        """A value, or None after about a second while nobody has published it."""
        status, body = self._call("GET", "/value/%s?wait=%g" % (name, LONG_POLL), None)
        if status == 200:
            return json.loads(body)
        say.alive("nobody has published %s" % name)
        return None

    def _call(self, method, path, body):
        pause = 0.05
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.request(method, path, body)
                answer = self._connection.getresponse()
                content = answer.read()
                if answer.status in (200, 204, 404, 429):
                    return answer.status, content
                raise OSError("data answers %d" % answer.status)
            except (OSError, http.client.HTTPException) as err:
                self._hang_up()
                say.alive("data cannot be reached: %s" % err)
                time.sleep(pause)
                pause = min(2 * pause, 0.5)

    def _connect(self):
        known = addresses("data")
        if not known:
            raise OSError("no address of role data is known")
        host, _, port = known[0].rpartition(":")
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT)

    def _hang_up(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None
