"""data: bounded queues and newest values, over HTTP. What it holds is lost when it ends; the others
fill it again.

    POST /queue/NAME?wait=S   append the body; 204, or 429 when there is no room for S seconds
    GET  /queue/NAME?wait=S   take the oldest; 200, or 204 when there is none for S seconds
    PUT  /value/NAME          replace; 204
    GET  /value/NAME?wait=S   200, or 404 when there is none for S seconds
    GET  /health              200 with the lengths of the queues
"""

import argparse
import collections
import http.server
import json
import threading
import urllib.parse

from tinyrl import say
from tinyrl.life import run

ROOM = 4  # items in a queue
QUEUES = ("episodes", "valued", "judged", "ready")
VALUES = ("policy",)
LARGEST = 4 << 20  # bytes of a body
PATIENCE = 2.0  # seconds that a request may be held back


class Shelf:
    """The queues and values, for all threads."""

    def __init__(self, served):
        self.changed = threading.Condition()
        self.queues = {name: collections.deque() for name in QUEUES}
        self.values = {}
        self.served = served  # items that went through, counted on from the life before

    def put(self, name, item, wait):
        """Append; whether there was room in time."""
        queue = self.queues[name]
        with self.changed:
            if not self.changed.wait_for(lambda: len(queue) < ROOM, wait):
                return False
            queue.append(item)
            self.served += 1
            self.changed.notify_all()
            return True

    def take(self, name, wait):
        """The oldest item, or None when there was none in time."""
        queue = self.queues[name]
        with self.changed:
            if not self.changed.wait_for(lambda: len(queue) > 0, wait):
                return None
            self.changed.notify_all()
            return queue.popleft()

    def publish(self, name, value):
        """Replace a value."""
        with self.changed:
            self.values[name] = value
            self.changed.notify_all()

    def value(self, name, wait):
        """A value, or None when there was none in time."""
        with self.changed:
            self.changed.wait_for(lambda: name in self.values, wait)
            return self.values.get(name)

    def lengths(self):
        """How full the queues are."""
        with self.changed:
            return {name: len(q) for name, q in self.queues.items()}


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    timeout = 60

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass  # a line for each request would be most of the log

    def do_GET(self):
        """Take or read."""
        kind, name, wait = self.target()
        if kind == "health":
            self.answer(200, json.dumps(self.server.shelf.lengths()).encode())
        elif kind == "queue" and name in QUEUES:
            item = self.server.shelf.take(name, wait)
            self.answer(204 if item is None else 200, item)
        elif kind == "value" and name in VALUES:
            value = self.server.shelf.value(name, wait)
            self.answer(404 if value is None else 200, value)
        else:
            self.answer(400)

    def do_POST(self):
        """Append."""
        kind, name, wait = self.target()
        body = self.body()
        if body is None or kind != "queue" or name not in QUEUES:
            self.answer(400)
        else:
            self.answer(204 if self.server.shelf.put(name, body, wait) else 429)

    def do_PUT(self):
        """Replace."""
        kind, name, _ = self.target()
        body = self.body()
        if body is None or kind != "value" or name not in VALUES:
            self.answer(400)
        else:
            self.server.shelf.publish(name, body)
            self.answer(204)

    def target(self):
        """(kind, name, seconds to wait) of the path."""
        url = urllib.parse.urlsplit(self.path)
        kind, _, name = url.path.strip("/").partition("/")
        try:
            wait = float(urllib.parse.parse_qs(url.query).get("wait", ["0"])[0])
        except ValueError:
            wait = 0.0
        return kind, name, min(max(wait, 0.0), PATIENCE)

    def body(self):
        """The body, or None when it has no length, is too large, or was cut short because the client
        died; the connection ends then."""
        length = self.headers.get("Content-Length", "")
        body = self.rfile.read(int(length)) if length.isdigit() and int(length) <= LARGEST else None
        if body is None or len(body) < int(length):
            self.close_connection = True
            return None
        return body

    def answer(self, status, body=None):
        """Send status and body."""
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if body and status != 204:
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    """The server; its loop speaks to vigil each time it goes round."""

    daemon_threads = True

    def __init__(self, address, shelf):
        self.shelf = shelf
        super().__init__(address, Handler)

    def service_actions(self):
        say.step(self.shelf.served)

    def handle_error(self, request, client_address):
        pass  # a client that is killed breaks its connection


def main(life):
    """Serve until stopped."""
    flags = argparse.ArgumentParser(description="the data role of tiny-rl")
    flags.add_argument("--host", default="127.0.0.1")
    flags.add_argument("--port", type=int, required=True, help="0: any free one, which is printed")
    args = flags.parse_args()
    with Server((args.host, args.port), Shelf(life.resume)) as server:
        life.print("listens on %s:%d" % server.server_address[:2])
        say.ready()
        server.serve_forever(poll_interval=0.2)


if __name__ == "__main__":
    run("data", main)
