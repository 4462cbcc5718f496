"""The injected hook beside other modules that Python runs at its start. shows: FAULT-K1

Agents are imitated, by the ways in which they treat a sitecustomize that theirs hides; the real ones are installed by
`make programs`.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import unittest
from typing import Dict, List

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from service import Service  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HOOK = os.path.join(ROOT, "internal", "service", "inject", "sitecustomize.py")

SAYS = "print('%s', flush=True)\n"

# Executes the one that it hides.
FINDS = """
import importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.abspath(__file__))
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or ".") != here])
if spec is not None and spec.loader is not None:
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
print("its chain is done")
"""

# Imports the one that it hides, and takes its place again where there is none.
IMPORTS = """
import os, sys
here = os.path.dirname(__file__)
if here in sys.path:
    at = sys.path.index(here)
    del sys.path[at]
    mine = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize
    except ImportError:
        sys.modules["sitecustomize"] = mine
    finally:
        sys.path.insert(at, here)
"""

# Keeps itself from what the program starts, and runs nothing else.
ALONE = """
import os
here = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in os.environ["PYTHONPATH"].split(os.pathsep) if p != here)
"""

AGENTS = {
    "finds": FINDS,
    "imports": IMPORTS,
    "alone": ALONE,
    "plain": "ANSWER = 42\n",
    "raises": "raise RuntimeError('of the agent')\n",
    "misses": "import there_is_no_such_module\n",
    "exits": "import sys\nsys.exit(3)\n",
    "leaves": "import os\nos._exit(4)\n",
}

# Says whose module stands for sitecustomize at last, and fails.
PROGRAM = "import os, sys\nown = sys.modules.get('sitecustomize')\nprint('at last', own and os.path.basename(os.path.dirname(own.__file__)))\n1 / 0"


class Neighbours(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.realpath(folder.name)
        for name, text in AGENTS.items():
            self.write(name, "sitecustomize.py", SAYS % name + text)
        with open(HOOK) as file:
            hook = file.read()
        for name in ("hook", "outer"):
            self.write(name, "sitecustomize.py", hook)

    def write(self, folder: str, name: str, text: str) -> None:
        os.makedirs(os.path.join(self.path, folder), exist_ok=True)
        with open(os.path.join(self.path, folder, name), "w") as file:
            file.write(text)

    def python(self, folders: "List[str]", *flags: str, program: str = PROGRAM, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run a program in the folder of the agents, with these in PYTHONPATH."""
        env: Dict[str, str] = {k: v for k, v in os.environ.items() if not k.startswith(("VIGIL_", "NOTIFY_", "PYTHON"))}
        env.update(self.service.environ(PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=os.pathsep.join(folders), **more))
        return subprocess.run([sys.executable, *flags, "-c", program], env=env, cwd=self.path, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def full(self, names: "tuple[str, ...]") -> "List[str]":
        return [os.path.join(self.path, name) for name in names]

    def ran(self, result: "subprocess.CompletedProcess[str]") -> "List[str]":
        """The agents that were set up, in order."""
        return [word for word in result.stdout.partition("at last")[0].split() if word in AGENTS or word == "finds2"]

    def without_the_hook(self, result: "subprocess.CompletedProcess[str]") -> "tuple[int, str, str]":
        """What a program shows, less the frames of a traceback."""
        lines = [line for line in result.stderr.splitlines() if not line.startswith(("  ", "Traceback", "Current thread"))]
        return result.returncode, result.stdout.replace("at last hook", "at last None"), "\n".join(lines)

    def test_whatever_stands_behind_the_hook_runs_as_it_would_without_it(self) -> None:
        chosen = [(name,) for name in AGENTS] + [("imports", "alone"), ("imports", "raises"), ("imports", "misses"), ("imports", "exits"), ("finds", "plain"), ("finds", "raises")]
        for names in chosen:
            want = self.without_the_hook(self.python(self.full(names)))
            for hooks in (("hook",), ("hook", "outer")):
                with self.subTest(behind=names, hooks=hooks):
                    got = self.without_the_hook(self.python(self.full(hooks + names)))
                    heard = self.service.heard()
                    self.assertEqual(want, got)
                    self.assertEqual(1 if "at last" in got[1] else 0, len(heard), heard)

    def test_agents_that_would_run_each_other_for_ever_run_once(self) -> None:
        self.write("finds2", "sitecustomize.py", SAYS % "finds2" + FINDS)
        for agents in itertools.permutations(("outer", "finds", "finds2")):
            order = ("hook",) + agents + ("plain",)
            with self.subTest(order):
                got = self.python(self.full(order))
                heard = self.service.heard()
                self.assertEqual(["finds", "finds2", "plain"], sorted(self.ran(got)), got.stderr)
                self.assertNotIn("Recursion", got.stderr)
                self.assertEqual(1, len(heard), heard)

    def test_one_before_the_hook_that_runs_it_is_not_run_again(self) -> None:
        for names in (("finds", "hook", "plain"), ("imports", "hook", "outer", "plain")):
            with self.subTest(names):
                got = self.python(self.full(names))
                self.assertEqual([n for n in names if n not in ("hook", "outer")], self.ran(got), got.stderr)
                self.assertEqual(1, len(self.service.heard()))

    def test_one_before_the_hook_that_runs_nothing_hides_it(self) -> None:
        got = self.python(self.full(("alone", "hook")))
        self.assertEqual("alone\nat last alone\n", got.stdout)
        self.assertEqual([], self.service.heard())

    def test_python_without_it_runs_neither(self) -> None:
        for flag, want in (("-S", "at last None\n"), ("-I", None), ("-E", None)):
            with self.subTest(flag):
                got = self.python(self.full(("hook", "finds")), flag)
                self.assertNotIn("finds", got.stdout)
                self.assertEqual(1, got.returncode)
                if want:
                    self.assertEqual(want, got.stdout)
                self.assertEqual([], self.service.heard())

    def test_parts_of_the_path_may_be_relative_empty_or_there_twice(self) -> None:
        self.write(".", "sitecustomize.py", SAYS % "of the folder")
        for path, want in (
            (["hook", "", "plain"], "of the folder"),
            (["hook", "finds", "hook", "", "finds"], "finds of the folder its chain is done"),
            (["hook", "./finds", "finds/", os.path.join(self.path, "finds"), "outer", "plain"], "finds plain its chain is done"),
            (["", "hook", "finds"], "of the folder"),
            (["no/such/folder", "hook", "plain"], "plain"),
        ):
            with self.subTest(path):
                got = self.python(path)
                self.assertEqual(want, " ".join(got.stdout.partition("at last")[0].split()), got.stderr)

    def test_the_modules_of_the_user_run_once(self) -> None:
        self.write("user", "usercustomize.py", SAYS % "of the user")
        where = dict(PYTHONUSERBASE=self.path)
        shown = [w for w in self.python(self.full(("hook", "finds", "user")), **where).stdout.splitlines() if w != "its chain is done"]
        enabled = self.python([], program="import site; print(site.ENABLE_USER_SITE)", **where).stdout.strip() == "True"
        self.assertEqual(["finds"] + ["of the user"] * enabled, shown[:-1])

    def test_in_a_fork_server_an_agent_is_set_up_once_and_the_hook_left_for_workers_once(self) -> None:
        program = "import sys\nassert len(sys._vigil_forked) == 1\nassert sys.excepthook is sys.__excepthook__"
        got = self.python(self.full(("hook", "finds", "outer", "imports", "plain")), program=program, VIGIL_FORK_SERVER="1")
        self.assertEqual((0, ["finds", "imports", "plain"]), (got.returncode, self.ran(got)), got.stderr)

    def test_a_program_that_is_executed_in_its_place_is_set_up_as_well(self) -> None:
        program = "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', %r])" % PROGRAM
        got = self.python(self.full(("hook", "finds")), program=program)
        self.assertEqual(["finds", "finds"], self.ran(got), got.stderr)
        self.assertEqual(1, len(self.service.heard()))


if __name__ == "__main__":
    unittest.main()
