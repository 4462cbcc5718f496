"""router: hands completions to the engines in turn. It watches nobody: vigil tells it who comes and
goes, through the hooks of the role engine.

    POST /add_worker?url=URL      an engine that may be asked
    POST /remove_worker?url=URL   one that may not; one that it does not know is as good as removed
    GET  /list_workers            those that it knows, with how many requests each has answered
    POST /v1/completions, GET /v1/models   handed on; 503 when no engine answers
    GET  /health                  200
"""

import argparse
import threading

import supervised
import web

TIMEOUT = 4.0  # seconds for one engine; then the next is asked


class Router(web.Server):
    """The router."""

    def __init__(self, port):
        super().__init__(port)
        self.lock = threading.Lock()
        self.served = {}  # by URL, whose turn it is first
        # A router that is begun again finds the engines at work; the hooks tell it the rest.
        for engine in supervised.peers("engine"):
            if engine["state"] in ("ready", "paused"):
                self.served[engine["url"]] = 0

    def answer(self, method, path, query, body):
        if path == "/health":
            return 200, {}
        if path == "/list_workers":
            with self.lock:
                return 200, {"workers": [{"url": u, "served": n} for u, n in self.served.items()]}
        if method == "POST" and path in ("/add_worker", "/remove_worker"):
            return self.change(path == "/add_worker", query.get("url", ""))
        if path in ("/v1/completions", "/v1/models"):
            return self.hand_on(method, path, body)
        return 404, {"error": {"message": "there is no %s %s" % (method, path)}}

    def change(self, add, url):
        """Begin or end asking an engine."""
        if not url.startswith("http://"):
            return 400, {"error": {"message": "want url=http://HOST:PORT"}}
        with self.lock:
            known = url in self.served
            if add:
                self.served.setdefault(url, 0)
            else:
                self.served.pop(url, None)
        print("%s %s%s" % ("asks" if add else "asks no more", url, "" if known != add else " (as before)"), flush=True)
        return 200, {"url": url}

    def turn(self):
        """The engines, whose turn it is first; it goes to the end."""
        with self.lock:
            urls = list(self.served)
            if urls:
                self.served[urls[0]] = self.served.pop(urls[0])
        return urls

    def hand_on(self, method, path, body):
        """The answer of the first engine that has one."""
        for url in self.turn():
            try:
                status, value = web.ask(method, url + path, body if method == "POST" else None, TIMEOUT)
            except OSError:
                continue  # it has died or hangs; whether it comes back, vigil knows
            if status == 503:
                continue
            with self.lock:
                if url in self.served:
                    self.served[url] += 1
            return status, value
        return 503, {"error": {"message": "no engine answers"}}


def main():
    """Serve until stopped."""
    flags = argparse.ArgumentParser(description="a router of inference engines")
    flags.add_argument("--port", type=int, required=True)
    args = flags.parse_args()
    with Router(args.port) as router:
        supervised.write("router", "http://127.0.0.1:%d" % router.server_port)
        router.serve_forever(poll_interval=0.2)


if __name__ == "__main__":
    main()
