"""JSON over HTTP: a client of one function and a server of one method."""

import http.client
import http.server
import json
import sys
import urllib.parse

LARGEST = 4 << 20  # bytes of a body


def ask(method, url, body=None, timeout=5.0, token=""):
    """(status, answer) of one request; OSError when there is no answer. The timeout, in seconds, is
    that of each step of the way."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        text = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = "Bearer " + token
        connection.request(method, parts.path + ("?" + parts.query if parts.query else ""), text, headers)
        answer = connection.getresponse()
        return answer.status, _value(answer.read())
    except http.client.HTTPException as err:
        raise OSError("%s: %s" % (url, type(err).__name__)) from err
    finally:
        connection.close()


def _value(text):
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = 30

    def log_message(self, format, *args):  # pylint: disable=redefined-builtin
        pass  # a line for each request would be most of the log

    def do_GET(self):
        """Answer a question."""
        self._answer({})

    def do_POST(self):
        """Answer a question that has a body."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > LARGEST:
            self.send_error(413)
            return
        text = self.rfile.read(int(length))
        if len(text) == int(length):  # else whoever sent it has died
            self._answer(_value(text))

    def _answer(self, body):
        url = urllib.parse.urlsplit(self.path)
        query = {k: v[0] for k, v in urllib.parse.parse_qs(url.query).items()}
        status, value = self.server.answer(self.command, url.path, query, body)
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Server(http.server.ThreadingHTTPServer):
    """A server on 127.0.0.1. Who makes one of it says in answer() what there is."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port):
        super().__init__(("127.0.0.1", port), _Handler)

    def answer(self, method, path, query, body):
        """(status, value) for one request."""
        raise NotImplementedError

    def handle_error(self, request, client_address):
        kind, err = sys.exc_info()[:2]
        if not issubclass(kind, OSError):  # else the client has gone
            print("%s: %s" % (kind.__name__, err), flush=True)
