"""tell_router: the hooks of the role engine. "add" or "remove" the worker that vigil names.

A router that is down asks nobody, so there is nothing to remove. To add an engine may fail, which
vigil says and tries again.
"""

import os
import sys
import urllib.parse

import supervised
import web


def main():
    """Tell it once."""
    if len(sys.argv) != 2 or sys.argv[1] not in ("add", "remove"):
        sys.exit("want add or remove")
    try:
        with open(os.path.join(supervised.folder(), "router"), encoding="utf-8") as f:
            router = f.read()
        engine = "http://" + os.environ["VIGIL_WORKER_ADDR"]
        status, answer = web.ask("POST", "%s/%s_worker?url=%s" % (router, sys.argv[1], urllib.parse.quote(engine, safe="")))
    except OSError as err:
        if sys.argv[1] == "remove":
            return
        sys.exit("tell the router to add an engine: %s" % err)
    if status != 200:
        sys.exit("tell the router to %s %s: %s %s" % (sys.argv[1], engine, status, answer))


if __name__ == "__main__":
    main()
