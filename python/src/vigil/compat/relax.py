"""The health functions of Relax, for training code that calls them.

`update_heartbeat`, `report_error` and `get_service_health` take a role's name, as there. The worker's own
role is spoken for at its service (VIGIL_SERVICE_URL), any other role and every question go to the
controller: VIGIL_CONTROLLER_URL, by default http://127.0.0.1:8000. vigil sets both, with a secret that lets a
worker of any user in; an address without one may want a token, which is read from VIGIL_CONTROLLER_TOKEN. Health() has them as methods, for `self.healthy.update_heartbeat(...)`.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, Optional

#: How long one request may take, in seconds.
TIMEOUT = 5.0

_LONGEST = 1 << 20

# A proxy of the environment is not meant for the controller.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Unavailable(RuntimeError):
    """The service or the controller did not answer, or refused; the text says why."""


def update_heartbeat(role: str, step: int) -> None:
    """Say that the role gets on and has done this step. Raises Unavailable."""
    _ask("POST", "%s/heartbeat?step=%d" % (_speaker(role), step))


def report_error(role: str, text: str) -> None:
    """Say that the role has failed; it is repaired. Raises Unavailable."""
    _ask("POST", _speaker(role) + "/report_error", str(text))


def get_service_health(role: str) -> Dict[str, Any]:
    """Return the role's health: healthy, error, last_heartbeat, current_step, task_running,
    restart_count, and more. Raises Unavailable."""
    answer = _ask("GET", "%s/api/v1/roles/%s" % (_controller(), urllib.parse.quote(role, safe="")))
    if not isinstance(answer, dict):
        raise Unavailable("health of %s: the answer is not an object" % role)
    return answer


class Health:
    """The three functions as methods."""

    update_heartbeat = staticmethod(update_heartbeat)
    report_error = staticmethod(report_error)
    get_service_health = staticmethod(get_service_health)


def _controller() -> str:
    return os.environ.get("VIGIL_CONTROLLER_URL", "http://127.0.0.1:8000").rstrip("/")


def _speaker(role: str) -> str:
    own = os.environ.get("VIGIL_SERVICE_URL")
    if own and role == os.environ.get("VIGIL_ROLE"):
        return own.rstrip("/")
    return "%s/%s" % (_controller(), urllib.parse.quote(role, safe=""))


def _ask(method: str, url: str, body: Optional[str] = None) -> Any:
    request = urllib.request.Request(url, method=method, data=(body or "").encode() if method == "POST" else None)
    request.add_header("Content-Type", "text/plain; charset=utf-8")
    token = os.environ.get("VIGIL_CONTROLLER_TOKEN")
    if token and url.startswith(_controller() + "/"):
        request.add_header("Authorization", "Bearer " + token)
    try:
        with _opener.open(request, timeout=TIMEOUT) as answer:
            return json.loads(answer.read(_LONGEST))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(_LONGEST).decode("utf-8", "replace")
        try:
            said = json.loads(said)["detail"]
        except (ValueError, KeyError, TypeError):
            pass
        raise Unavailable("%s %s: %d: %s" % (method, _shown(url), error.code, said)) from None
    except (OSError, ValueError) as error:
        raise Unavailable("%s %s: %s" % (method, _shown(url), error)) from None


def _shown(url: str) -> str:
    """The URL as it may stand in a log: without the secret in its path."""
    return re.sub(r"/life/[0-9a-f]{32}(?=/|$)", "/life/...", url)
