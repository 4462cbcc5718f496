"""Relax's names, against an HTTP server that records what it is asked."""

import http.server
import json
import threading
from unittest import mock
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from vigil.compat import relax  # noqa: E402


SECRET = "0123456789abcdef" * 2


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.asked("")

    def do_POST(self) -> None:
        self.asked(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())

    def asked(self, body: str) -> None:
        self.server.requests.append((self.command, self.path, body, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        unknown = "nobody" in self.path
        answer = {"detail": "no role nobody"} if unknown else {"healthy": True, "current_step": 42}
        self.send_response(404 if unknown else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args: object) -> None:
        pass


class Relax(unittest.TestCase):
    def setUp(self) -> None:
        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.requests = self.server.requests = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        url = "http://127.0.0.1:%d" % self.server.server_address[1]
        env = {"VIGIL_CONTROLLER_URL": url + "/life/" + SECRET, "VIGIL_SERVICE_URL": url + "/life/" + SECRET + "/u/actor/1/0/1", "VIGIL_ROLE": "actor", "http_proxy": "http://127.0.0.1:9"}
        patch = mock.patch.dict(os.environ, env)
        patch.start()
        self.addCleanup(patch.stop)

    def test_the_own_role_is_spoken_for_at_its_service_and_others_at_the_controller(self) -> None:
        with mock.patch.dict(os.environ, VIGIL_CONTROLLER_TOKEN="secret"):
            relax.Health().update_heartbeat("actor", 7)
            relax.report_error("critic", "Training failed: é")
        self.assertEqual(("POST", "/life/" + SECRET + "/u/actor/1/0/1/heartbeat?step=7", ""), self.requests[0][:3])
        self.assertEqual(("POST", "/life/" + SECRET + "/critic/report_error", "Training failed: é", "Bearer secret"), self.requests[1])

    def test_health_is_the_roles_record(self) -> None:
        self.assertEqual({"healthy": True, "current_step": 42}, relax.get_service_health("actor"))
        self.assertEqual("/life/" + SECRET + "/api/v1/roles/actor", self.requests[0][1])

    def test_what_is_refused_or_unreachable_says_why(self) -> None:
        with self.assertRaisesRegex(relax.Unavailable, "404: no role nobody"):
            relax.get_service_health("nobody")
        with mock.patch.dict(os.environ, VIGIL_CONTROLLER_URL="http://127.0.0.1:9"):
            with self.assertRaisesRegex(relax.Unavailable, "refused"):
                relax.get_service_health("actor")

    # shows: FAULT-A2
    def test_a_secret_stands_in_no_exception(self) -> None:
        said = []
        with self.assertRaises(relax.Unavailable) as refused:
            relax.get_service_health("nobody")
        said.append(str(refused.exception))
        with mock.patch.dict(os.environ, VIGIL_SERVICE_URL="http://127.0.0.1:9/life/" + SECRET + "/u/actor/1/0/1"):
            with self.assertRaises(relax.Unavailable) as lost:
                relax.update_heartbeat("actor", 1)
        said.append(str(lost.exception))
        for text in said:
            self.assertNotIn(SECRET, text)
            self.assertIn("/life/.../", text)


if __name__ == "__main__":
    unittest.main()
