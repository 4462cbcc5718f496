"""Whole programs that import the package, each in a process of its own."""

import json
import signal
import subprocess
import tempfile
import time
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from service import SOURCE, Service, run  # noqa: E402


class Program(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.addCleanup(self.service.close)

    def said(self, program: str, **more: str) -> "list[str]":
        more.setdefault("VIGIL_FAULTHANDLER", "0")
        self.result = self.service.run(program, **more)
        return self.service.heard()

    def test_an_exception_that_nobody_catches_is_reported_before_the_interpreter_dies(self) -> None:
        said = self.said("import vigil\ndef step():\n  raise RuntimeError('loss is NaN\\nat step 3')\nstep()")
        self.assertEqual(["X_VIGIL_ERROR=RuntimeError: loss is NaN | at step 3 (<string>:3 in step)\nX_VIGIL_SOURCE=hook"], said)
        self.assertEqual(1, self.result.returncode)
        self.assertIn("RuntimeError: loss is NaN", self.result.stderr)

    def test_a_hook_that_was_there_before_is_called_too(self) -> None:
        said = self.said("import sys\nsys.excepthook = lambda *a: print('mine')\nimport vigil\n1/0")
        self.assertEqual(1, len(said))
        self.assertEqual("mine\n", self.result.stdout)

    def test_neither_exit_nor_an_interrupt_is_an_error(self) -> None:
        self.assertEqual([], self.said("import vigil, sys\nsys.exit(3)"))
        self.assertEqual(3, self.result.returncode)
        self.assertEqual([], self.said("import vigil\nraise KeyboardInterrupt"))

    # shows: FAULT-A1
    def test_what_a_child_does_not_catch_is_for_the_program_to_judge(self) -> None:
        prelude = """
import multiprocessing, os, subprocess, sys, vigil
def fails(*anything):
  raise ValueError("of a child")
def bare():
  import time; time.sleep(0.01); 1 / 0
def start(method, target):
  p = multiprocessing.get_context(method).Process(target=target); p.start(); p.join()
"""
        child = "subprocess.run([sys.executable, '-c', %r], **%s)"
        for name, program in (
            ("a program", child % ("import vigil; 1/0", {})),
            ("a program with a session of its own", child % ("import vigil; 1/0", {"start_new_session": True})),
            ("a program that is decorated", child % ("import vigil; vigil.record(lambda: 1/0)()", {})),
            ("a program of a program", child % ("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import vigil; 1/0'])", {})),
            ("a shell's", child % ("import os, sys; os.system(sys.executable + \" -c 'import vigil; 1/0'\")", {})),
            ("a fork", "if os.fork() == 0: fails()\nos.wait()"),
            ("a daemon", "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: bare()\n  os._exit(0)\nos.wait()\nimport time; time.sleep(1)"),
            ("a forked process", "start('fork', fails)"),
        ):
            with self.subTest(name):
                said = self.said(prelude + program)
                self.assertEqual(0, self.result.returncode, self.result.stderr)
                self.assertEqual([], said, self.result.stderr)

    # shows: FAULT-A1
    def test_the_methods_of_multiprocessing_report_nothing_either(self) -> None:
        script = os.path.join(self.service.dir, "train.py")
        with open(script, "w") as file:
            file.write("import multiprocessing, sys, vigil\ndef fails():\n  raise ValueError('of a child')\nif __name__ == '__main__':\n"
                       "  p = multiprocessing.get_context(sys.argv[1]).Process(target=fails)\n  p.start()\n  p.join()\n  sys.exit(p.exitcode - 1)")
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method):
                env = dict(os.environ, PYTHONPATH=SOURCE, VIGIL_FAULTHANDLER="0", **self.service.environ())
                result = subprocess.run([sys.executable, script, method], env=env, capture_output=True, text=True, timeout=60)
                self.assertEqual(0, result.returncode, result.stderr)
                self.assertIn("of a child", result.stderr)
                self.assertEqual([], self.service.heard())

    # shows: FAULT-A1
    def test_what_a_child_reports_explicitly_is_said(self) -> None:
        report = "import vigil; vigil.report_error('no data')"
        self.assertEqual(["X_VIGIL_ERROR=no data"], self.said("import subprocess, sys, vigil\nsubprocess.run([sys.executable, '-c', %r])" % report))
        self.assertEqual(["X_VIGIL_ERROR=no data"], self.said("import os, vigil\nif os.fork() == 0:\n  vigil.report_error('no data')\n  os._exit(0)\nos.wait()"))

    # shows: FAULT-A1
    def test_a_program_that_another_has_become_reports_and_so_does_one_below_a_shell(self) -> None:
        said = self.said("import os, sys, vigil\nos.execv(sys.executable, [sys.executable, '-c', 'import vigil; 1/0'])")
        self.assertEqual(["X_VIGIL_ERROR=ZeroDivisionError: division by zero (<string>:1 in <module>)\nX_VIGIL_SOURCE=hook"], said)
        env = dict(os.environ, PYTHONPATH=SOURCE, VIGIL_FAULTHANDLER="0", **self.service.environ())
        subprocess.run(["/bin/sh", "-c", "'%s' -c 'import vigil; 1/0'; exit 3" % sys.executable], env=env, stderr=subprocess.DEVNULL, timeout=60)
        self.assertEqual(1, len(self.service.heard()))

    def test_an_error_is_reported_once_and_fatal_says_more(self) -> None:
        said = self.said("import vigil\nvigil.report_error('no data')\ne = ValueError('x')\nvigil.report_error(e)\nvigil.report_error(e)\n"
                         "vigil.report_error(e, fatal=True)\nvigil.report_error('')")
        self.assertEqual(["X_VIGIL_ERROR=no data", "X_VIGIL_ERROR=ValueError: x", "X_VIGIL_ERROR=ValueError: x\nX_VIGIL_FATAL=1",
                          "X_VIGIL_ERROR=reported without a text"], said)

    def test_record_writes_what_torchelastic_reads_and_lets_the_error_pass(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "error.json")
            said = self.said("import vigil\n@vigil.record\ndef main():\n  raise TypeError('no')\nmain()", TORCHELASTIC_ERROR_FILE=path)
            with open(path) as file:
                written = json.load(file)["message"]
            self.assertEqual([os.path.basename(path)], os.listdir(folder))
        self.assertEqual("TypeError: no", written["message"])
        self.assertIn("in main", written["extraInfo"]["py_callstack"])
        self.assertAlmostEqual(time.time(), int(written["extraInfo"]["timestamp"]), delta=60)
        self.assertEqual(["X_VIGIL_ERROR=TypeError: no (<string>:4 in main)\nX_VIGIL_SOURCE=hook"], said)
        self.assertEqual(1, self.result.returncode)

    def test_an_error_file_that_cannot_be_written_hides_nothing(self) -> None:
        said = self.said("import vigil\n@vigil.record\ndef main():\n  raise TypeError('no')\nmain()", TORCHELASTIC_ERROR_FILE="/proc/none/x")
        self.assertEqual(1, len(said))
        self.assertIn("TypeError: no", self.result.stderr)

    def test_an_exception_that_cannot_be_printed_is_reported_all_the_same(self) -> None:
        said = self.said("import vigil\nclass E(Exception):\n  def __str__(self): raise ValueError\nvigil.report_error(E())")
        self.assertEqual(1, len(said))
        self.assertTrue(said[0].startswith("X_VIGIL_ERROR="), said)
        self.assertEqual(0, self.result.returncode, self.result.stderr)

    def test_the_last_step_is_said_at_the_end(self) -> None:
        said = self.said("import vigil\nfor i in range(1000): vigil.heartbeat(i)")
        self.assertEqual(("X_VIGIL_STEP=0", "X_VIGIL_STEP=999"), (said[0], said[-1]))

    def test_a_forked_child_neither_takes_orders_nor_repeats_what_its_parent_held_back(self) -> None:
        program = """
import os, vigil
vigil.heartbeat(1); vigil.heartbeat(2)
pid = os.fork()
if pid == 0:
    vigil.should_stop()
    vigil._api.channel().finish()
    vigil.status("child")
    os._exit(0 if not vigil._api.channel()._in else 9)
_, code = os.waitpid(pid, 0)
print(code, vigil._api.channel()._in is not None, os.path.exists(os.environ["VIGIL_INBOX"]))
"""
        said = self.said(program)
        self.assertEqual("0 True True\n", self.result.stdout, self.result.stderr)
        self.assertEqual(["X_VIGIL_STEP=1", "STATUS=child", "X_VIGIL_STEP=2"], said)

    def test_outside_vigil_nothing_is_changed(self) -> None:
        result = run("import sys, signal, faulthandler\nh = sys.excepthook\nimport vigil\nvigil.heartbeat(1)\n"
                     "assert sys.excepthook is h and not vigil.active()\nassert not faulthandler.unregister(signal.SIGUSR2)\nprint(vigil.resume_step(7))")
        self.assertEqual("7\n", result.stdout, result.stderr)
        self.assertEqual("42\n", run("import vigil\nprint(vigil.resume_step())", VIGIL_RESUME_STEP="42").stdout)

    def test_a_signal_writes_the_stacks_and_the_service_knows_which(self) -> None:
        program = "import vigil, sys\ndef wait():\n  sys.stdin.read()\nwait()"
        env = dict(os.environ, PYTHONPATH=SOURCE, **self.service.environ())
        child = subprocess.Popen([sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert child.stderr is not None and child.stdin is not None
            deadline = time.monotonic() + 30
            said: "list[str]" = []
            while not said and time.monotonic() < deadline:
                said = self.service.heard()
            self.assertEqual(["X_VIGIL_FAULTHANDLER=SIGUSR2"], said)
            child.send_signal(signal.SIGUSR2)
            line = child.stderr.readline()
            child.stdin.close()
            self.assertIn(b"most recent call first", line)
            self.assertIn(b"in wait", child.stderr.read() or line)
            self.assertEqual(0, child.wait(30))
        finally:
            child.kill()
            child.wait()
            child.stderr.close()

    def test_a_signal_that_the_program_uses_is_left_alone(self) -> None:
        program = "import signal\nsignal.signal(signal.SIGUSR2, signal.SIG_IGN)\nimport vigil"
        self.assertEqual([], self.said(program, VIGIL_FAULTHANDLER="1"))
        self.assertEqual([], self.said("import vigil", VIGIL_FAULTHANDLER="0"))


if __name__ == "__main__":
    unittest.main()
