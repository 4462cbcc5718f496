"""The optimizer hook that the service injects: with stand-ins for both generations of PyTorch, and the real one."""

import subprocess
import tempfile
import textwrap
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from service import Service, run  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOOK = os.path.join(ROOT, "internal", "service", "inject")

# What both generations have in common, as far as the hook looks at it.
PYTORCH_1 = """
class Optimizer:
    def __init__(self, params): self.params = params
"""
PYTORCH_2 = """
import functools
_hooks = []
def register_optimizer_step_post_hook(hook): _hooks.append(hook)
class Optimizer:
    def __init__(self, params):
        self.params = params
        step = type(self).step
        if not hasattr(step, "hooked"):
            @functools.wraps(step)
            def wrapper(self, *args, **kwargs):
                out = step(self, *args, **kwargs)
                for hook in _hooks: hook(self, args, kwargs)
                return out
            wrapper.hooked = True
            type(self).step = wrapper
"""
SGD = """
from .optimizer import Optimizer
class SGD(Optimizer):
    def step(self, closure=None): return "stepped"
"""
LOOP = """
import torch.optim, inspect
opt = torch.optim.SGD([])
for i in range(3): assert opt.step() == "stepped"
inspect.getsource(torch.optim.optimizer)
"""

# Leads a session, as a worker does.
WORKER = "import os\nos.setsid()\n"


class Hook(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name

    def write(self, name: str, text: str) -> None:
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)

    def torch(self, generation: str) -> None:
        self.write("torch/__init__.py", "")
        self.write("torch/optim/__init__.py", SGD.replace("from .optimizer", "from . import optimizer\nfrom .optimizer"))
        self.write("torch/optim/optimizer.py", generation)

    def run_with_hook(self, program: str, **more: str) -> "list[str]":
        env = self.service.environ(VIGIL_FAULTHANDLER="0", PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=HOOK + os.pathsep + self.path, **more)
        self.result = run(textwrap.dedent(program), **env)
        self.assertEqual(0, self.result.returncode, self.result.stderr)
        return self.service.heard()

    def test_the_steps_of_both_generations_are_counted_and_marked_as_a_guess(self) -> None:
        for name, generation in (("1", PYTORCH_1), ("2", PYTORCH_2)):
            with self.subTest(pytorch=name):
                self.torch(generation)
                self.assertEqual(["X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=1"], self.run_with_hook(LOOP))
                program = LOOP + "import time\nwhile time.monotonic() % 1000 and i < 60: i += 1; opt.step(); time.sleep(0.002)"
                said = [int(w.rpartition("=")[2]) for w in self.run_with_hook(program, VIGIL_RESUME_STEP="100")]
                self.assertEqual(101, said[0])
                self.assertEqual(sorted(set(said)), said)
                self.assertTrue(1 < len(said) < 30 and said[-1] <= 161, said)

    def test_a_step_that_calls_the_step_of_its_base_counts_once_and_an_exception_passes(self) -> None:
        self.torch(PYTORCH_1)
        said = self.run_with_hook(LOOP + """
import time
class Mine(torch.optim.SGD):
    def step(self, closure=None):
        if closure: raise ValueError("x")
        return super().step()
time.sleep(0.06)
mine = Mine([])
for i in range(4): mine.step()
try: mine.step(True)
except ValueError: pass
time.sleep(0.06)
mine.step()
""")
        self.assertEqual("5", said[-1].rpartition("=")[2])

    def test_a_program_that_says_its_steps_itself_is_left_alone(self) -> None:
        self.torch(PYTORCH_2)
        self.assertEqual(["X_VIGIL_STEP=7"], self.run_with_hook("import vigil\nvigil.heartbeat(7)\n" + LOOP))

    def test_nothing_of_pytorch_is_imported_on_its_behalf_and_it_can_be_switched_off(self) -> None:
        self.torch(PYTORCH_2)
        self.assertEqual([], self.run_with_hook("import sys\nassert 'torch' not in sys.modules and 'socket' not in sys.modules"))
        self.assertEqual([], self.run_with_hook(LOOP, VIGIL_INJECT="0"))

    def errors(self, program: str, code: int, **more: str) -> "list[str]":
        """What a worker that ends with this code says."""
        env = self.service.environ(VIGIL_LIFE="j/r/1/0/1", VIGIL_FAULTHANDLER="0", PYTHONPATH=HOOK, **more)
        self.result = run(WORKER + textwrap.dedent(program), **env)
        self.assertEqual(code, self.result.returncode, self.result.stderr)
        return self.service.heard()

    def test_an_exception_that_nobody_catches_is_reported_once_when_its_traceback_is_written(self) -> None:
        program = """
            import atexit, socket
            def f(): raise ValueError("no data\\nat all")
            f()
        """
        want = "X_VIGIL_SOURCE=hook\nX_VIGIL_ERROR=ValueError: no data | at all (<string>:5 in f)"
        self.assertEqual([want], self.errors(program, 1))
        self.assertIn("Traceback", self.result.stderr)
        own = "import sys\nsys.excepthook = lambda *a, b=sys.excepthook: (print('mine', flush=True), b(*a))\n"
        self.assertEqual([want], [w.replace("string>:8", "string>:5") for w in self.errors(own + textwrap.dedent("\n" + program), 1)])
        self.assertEqual("mine\n", self.result.stdout)
        said = [w.replace("string>:6", "string>:5") for w in self.errors("import vigil\n" + textwrap.dedent(program), 1)]
        self.assertEqual([sorted(want.split("\n"))], [sorted(w.split("\n")) for w in said])

    def test_what_is_no_error_of_the_worker_is_not_reported(self) -> None:
        raising = "import sys, subprocess\nsubprocess.run([sys.executable, '-c', 'import os; %s; 1/0'], start_new_session=%s)"
        for name, program, code in (
            ("ends well", "raise SystemExit", 0),
            ("a code of its own", "raise SystemExit(3)", 3),
            ("interrupted", "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()", -2),
            ("handled", "try: 1 / 0\nexcept ZeroDivisionError: pass", 0),
            ("of a program that it runs", raising % ("0", False), 0),
            ("of one with a session of its own", raising % ("0", True), 0),
            ("of one that makes a session", raising % ("os.setsid()", False), 0),
            ("of a daemon", "import os, time\nif os.fork() == 0:\n  if os.fork() == 0:\n    os.setsid(); time.sleep(0.05); 1/0\n  os._exit(0)\nos.wait()\ntime.sleep(0.5)", 0),
            ("of a fork", "import os\nif os.fork() == 0: 1 / 0\nos.wait()", 0),
        ):
            with self.subTest(name):
                self.assertEqual([], self.errors(program, code))
        with self.subTest("switched off"):
            self.assertEqual([], self.errors("1 / 0", 1, VIGIL_INJECT="0"))

    def test_the_end_of_a_peer_is_seen_before_what_comes_of_it_is_reported(self) -> None:
        began = "import time\nt = time.monotonic()\nimport atexit\natexit.register(lambda: print(time.monotonic() - t > 0.2))\n"
        said = self.errors(began + "raise RuntimeError('Connection closed by peer [127.0.0.1]:1')", 1)
        self.assertEqual("True\n", self.result.stdout)
        self.assertEqual(1, len(said))

    def test_in_a_fork_server_it_waits_for_the_workers(self) -> None:
        for name, generation in (("1", PYTORCH_1), ("2", PYTORCH_2)):
            for early in ("import torch.optim", ""):
                with self.subTest(pytorch=name, preloaded=bool(early)):
                    self.torch(generation)
                    program = """
                        import sys, os
                        %s
                        to = os.environ.pop("LATER")
                        assert sys.excepthook is sys.__excepthook__
                        os.environ["NOTIFY_SOCKET"] = to
                        for late in sys._vigil_forked: late()
                        assert sys.excepthook is sys.__excepthook__
                    """ % early
                    env = dict(PYTHONPATH=HOOK + os.pathsep + self.path, PYTHONDONTWRITEBYTECODE="1", VIGIL_FORK_SERVER="1", LATER=self.service.up)
                    result = run(textwrap.dedent(program) + LOOP, **env)
                    self.assertEqual(0, result.returncode, result.stderr)
                    self.assertEqual(["X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=1"], self.service.heard())

    def test_a_sitecustomize_that_it_hides_runs_and_so_does_usercustomize(self) -> None:
        self.torch(PYTORCH_1)
        self.write("sitecustomize.py", "import builtins\nbuiltins.seen = __file__\nANSWER = 42")
        base = subprocess.run([sys.executable, "-m", "site", "--user-site"], env=dict(os.environ, PYTHONUSERBASE=self.path), capture_output=True, text=True).stdout.strip()
        self.write(os.path.join(os.path.relpath(base, self.path), "usercustomize.py"), "import builtins\nbuiltins.user = True")
        said = self.run_with_hook("import sitecustomize, os, site\nassert sitecustomize.ANSWER == 42 and os.path.dirname(seen) == os.environ['HIDDEN']\n"
                                  "assert user or not site.ENABLE_USER_SITE\n" + LOOP, HIDDEN=self.path, PYTHONUSERBASE=self.path)
        self.assertEqual(1, len(said))

    def test_one_that_raises_is_told_as_ever_and_the_hook_stays(self) -> None:
        self.torch(PYTORCH_1)
        self.write("sitecustomize.py", "raise RuntimeError('of the machine')")
        self.assertEqual(1, len(self.run_with_hook(LOOP)))
        self.assertIn("of the machine", self.result.stderr)

    def test_a_service_that_is_gone_or_full_does_not_reach_the_program(self) -> None:
        self.torch(PYTORCH_2)
        self.service.socket.close()
        env = self.service.environ(PYTHONPATH=HOOK + os.pathsep + self.path)
        self.assertEqual(0, run(LOOP, **env).returncode)

    def test_a_pytorch_that_is_not_as_it_was_is_left_alone(self) -> None:
        self.torch(PYTORCH_2.replace("def register_optimizer_step_post_hook(hook)", "def register_optimizer_step_post_hook()"))
        self.assertEqual([], self.run_with_hook(LOOP))
        self.assertEqual("", self.result.stderr)


class RealPyTorch(unittest.TestCase):
    def test_real_optimizers_are_counted(self) -> None:
        for python in dict.fromkeys((sys.executable, "/usr/bin/python3")):
            if os.path.exists(python) and subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0:
                break
        else:
            self.skipTest("SKIPPED: PyTorch is not installed for python3 or /usr/bin/python3 (Debian: python3-torch)")
        service = Service()
        self.addCleanup(service.close)
        program = textwrap.dedent("""
            import torch, time, copy
            assert "sitecustomize" in __import__("sys").modules
            line = torch.nn.Linear(1, 1)
            slow, fast = torch.optim.SGD(line.parameters(), lr=0.1), torch.optim.Adam(line.parameters())
            schedule = torch.optim.lr_scheduler.StepLR(fast, 10)
            for i in range(10):
                loss = line(torch.ones(1, 1)).sum(); loss.backward()
                fast.step(); schedule.step()
                if i % 2: slow.step()
            copy.deepcopy(fast).load_state_dict(fast.state_dict())
            time.sleep(0.06)
            fast.step()
        """)
        env = dict(os.environ, PYTHONPATH=HOOK, PYTHONDONTWRITEBYTECODE="1", **service.environ())
        result = subprocess.run([python, "-W", "error::UserWarning:torch.optim", "-c", program], env=env, capture_output=True, text=True, timeout=120)
        self.assertEqual(0, result.returncode, result.stderr)
        said = service.heard()
        self.assertEqual("X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=1", said[0])
        self.assertEqual("X_VIGIL_SOURCE=hook\nX_VIGIL_STEP=11", said[-1])


if __name__ == "__main__":
    unittest.main()
