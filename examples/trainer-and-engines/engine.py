"""engine: an inference server. It holds one copy of the weights; a new one knows nothing until it is
given some.

    POST /v1/completions   {"prompt": "1+2=", "n": 4, "seed": 7} as OpenAI has it; 503 while paused
    GET  /v1/models        the one model, with the version of its weights
    POST /pause            answers when nothing is being completed any more
    POST /update_weights   {"version": "1.20", "weights": {...}}
    POST /resume           goes on
    GET  /health           200, or 503 while paused: an engine that takes weights in has no time for it

A file engine-RANK.hang, .die or .refuse in ENGINES_DIR breaks it: it answers nothing any more, ends
with status 3, refuses the next weights.
"""

import argparse
import os
import threading
import time

import model
import supervised
import web

PATIENCE = 4.0  # seconds that a pause waits for completions


class Engine(web.Server):
    """One engine."""

    def __init__(self, port, name):
        super().__init__(port)
        self.name = name
        self.changed = threading.Condition()
        self.weights, self.version = model.untrained(), "untrained"
        self.paused, self.running, self.hung = False, 0, False

    def service_actions(self):
        """Five times a second: see whether somebody wants it broken."""
        if supervised.asked(self.name + ".hang"):
            print("hangs", flush=True)
            self.hung = True
        if supervised.asked(self.name + ".die"):
            print("dies", flush=True)
            os._exit(3)

    def answer(self, method, path, query, body):
        if self.hung:
            threading.Event().wait()
        if path == "/health":
            return (503 if self.paused else 200), {"version": self.version, "paused": self.paused}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "vigil", "root": self.version}]}
        if method == "POST" and path == "/v1/completions":
            return self.completions(body)
        if method == "POST" and path in ("/pause", "/resume"):
            return self.pause(path == "/pause")
        if method == "POST" and path == "/update_weights":
            return self.update(body)
        return 404, {"error": {"message": "there is no %s %s" % (method, path)}}

    def completions(self, body):
        """What the model says."""
        prompt, n = body.get("prompt"), body.get("n", 1)
        if prompt not in model.PROMPTS or not isinstance(n, int) or not 1 <= n <= 128:
            return 400, {"error": {"message": "want a prompt such as 1+2= and n from 1 to 128"}}
        with self.changed:
            if self.paused:
                return 503, {"error": {"message": "paused"}}
            self.running += 1
            weights, version = self.weights, self.version
        try:
            texts = model.complete(weights, prompt, body.get("seed", 0), n)
        finally:
            with self.changed:
                self.running -= 1
                self.changed.notify_all()
        choices = [{"index": i, "text": t, "finish_reason": "stop"} for i, t in enumerate(texts)]
        return 200, {"object": "text_completion", "model": "tiny", "system_fingerprint": version, "choices": choices}

    def pause(self, on):
        """Begin or end a pause."""
        with self.changed:
            self.paused = on
            self.changed.notify_all()
            if on and not self.changed.wait_for(lambda: self.running == 0, PATIENCE):
                return 503, {"error": {"message": "%d completions go on" % self.running}}
        return 200, {"paused": on}

    def update(self, body):
        """Take weights in."""
        if supervised.asked(self.name + ".refuse"):
            return 500, {"error": {"message": "out of memory"}}
        weights, version = body.get("weights"), body.get("version")
        if not isinstance(weights, dict) or set(weights) != set(model.PROMPTS) or not version:
            return 400, {"error": {"message": "want a version and weights for every prompt"}}
        with self.changed:
            if not self.paused:
                return 409, {"error": {"message": "pause first"}}
            self.weights, self.version = weights, version
        print("has weights %s" % version, flush=True)
        return 200, {"version": version}


def main():
    """Load for a moment, then serve until stopped."""
    flags = argparse.ArgumentParser(description="an inference engine")
    flags.add_argument("--port", type=int, required=True)
    args = flags.parse_args()
    time.sleep(float(os.environ.get("ENGINES_LOAD", "0.5")))
    with Engine(args.port, "engine-" + os.environ.get("VIGIL_RANK", "0")) as engine:
        print("listens on 127.0.0.1:%d" % engine.server_port, flush=True)
        engine.serve_forever(poll_interval=0.2)


if __name__ == "__main__":
    main()
