"""What goes over the sockets, and what happens when nobody reads them."""

import os
import socket
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src"))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from service import Service  # noqa: E402

from vigil import _api  # noqa: E402
from vigil._channel import BACKLOG, Channel, one_line  # noqa: E402


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Case(unittest.TestCase):
    def setUp(self) -> None:
        self.service = Service()
        self.clock = Clock()
        self.use(Channel(self.service.environ(), self.clock))
        self.addCleanup(self.service.close)

    def use(self, channel: Channel) -> None:
        before, callback = _api.channel(), _api._callback
        self.channel = channel
        _api.use(channel)
        _api._callback = None

        def back() -> None:
            channel.abandon()
            _api.use(before)
            _api._callback = callback

        self.addCleanup(back)


class Saying(Case):
    def test_the_first_step_goes_out_at_once_and_then_at_most_one_in_50_ms(self) -> None:
        for step in range(200):
            _api.heartbeat(step)
            self.clock.now += 0.001
        self.assertEqual(["X_VIGIL_STEP=0", "X_VIGIL_STEP=50", "X_VIGIL_STEP=100", "X_VIGIL_STEP=150"], self.service.heard())

    def test_a_step_that_was_held_back_goes_before_what_is_said_next_and_out_at_the_end(self) -> None:
        for step in (1, 2, 3):
            _api.heartbeat(step)
        _api.checkpointed(3)
        _api.heartbeat(4)
        self.channel.finish()
        self.assertEqual(["X_VIGIL_STEP=1", "X_VIGIL_STEP=3", "X_VIGIL_CHECKPOINT=3", "X_VIGIL_STEP=4"], self.service.heard())

    def test_a_heartbeat_without_a_step_is_a_sign_of_life(self) -> None:
        _api.heartbeat()
        self.assertEqual(["WATCHDOG=1"], self.service.heard())

    def test_phases_nest_and_close_after_an_exception(self) -> None:
        @_api.phase("eval")
        def evaluate(n: int) -> int:
            return n + 1

        with self.assertRaises(KeyError), _api.phase("checkpoint"), _api.watching_paused():
            raise KeyError("x")
        self.assertEqual(3, evaluate(2))
        self.assertEqual("evaluate", evaluate.__name__)
        names = ["+checkpoint", "+paused", "-paused", "-checkpoint", "+eval", "-eval"]
        self.assertEqual(["X_VIGIL_PHASE=" + n for n in names], self.service.heard())

    def test_no_name_and_no_text_can_say_anything_else(self) -> None:
        with _api.phase("a\nREADY=1\n" + "x" * 10_000):
            pass
        _api.status("one\ntwo\0three")
        said = self.service.heard()
        self.assertEqual(["STATUS=one | two three"], said[2:])
        self.assertTrue(all(w.count("\n") == 0 and len(w) <= len("X_VIGIL_PHASE=+") + 64 for w in said), said)
        self.assertEqual(8000, len(one_line("é" * 9000).encode()))

    def test_junk_for_a_step_does_not_reach_the_loop(self) -> None:
        _api.heartbeat("nonsense")  # type: ignore[arg-type]
        _api.checkpointed(None)  # type: ignore[arg-type]
        self.assertEqual([], self.service.heard())
        self.assertEqual(1, _api.dropped())

    def test_junk_that_was_held_back_takes_nothing_else_with_it(self) -> None:
        _api.heartbeat(1)
        _api.heartbeat("nonsense")  # type: ignore[arg-type]
        _api.checkpointed(1)
        _api.heartbeat("nonsense")  # type: ignore[arg-type]
        self.channel.finish()
        self.assertEqual(["X_VIGIL_STEP=1", "X_VIGIL_CHECKPOINT=1"], self.service.heard())
        self.assertEqual(2, _api.dropped())

    def test_without_a_service_everything_is_mute(self) -> None:
        self.use(Channel({}, self.clock))
        _api.heartbeat(1)
        with _api.phase("x"):
            _api.checkpointed(1)
        self.assertEqual((False, False, None, 0), (_api.active(), _api.should_stop(), _api.pending_step(), _api.dropped()))

    def test_a_service_that_is_gone_is_counted_not_raised(self) -> None:
        self.service.close()
        _api.heartbeat(1)
        _api.checkpointed(1)
        self.assertEqual(1, _api.dropped())  # the checkpoint is kept

    def test_words_arrive_although_the_path_is_gone_and_reach_who_listens_there_next(self) -> None:
        _api.checkpointed(1)
        os.unlink(self.service.up)
        _api.checkpointed(2)
        self.assertEqual(["X_VIGIL_CHECKPOINT=1", "X_VIGIL_CHECKPOINT=2"], self.service.heard())
        self.service.socket.close()
        _api.checkpointed(3)  # kept: nobody listens
        self.service.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.service.socket.bind(self.service.up)
        self.service.socket.setblocking(False)
        _api.checkpointed(4)
        self.assertEqual(["X_VIGIL_CHECKPOINT=3", "X_VIGIL_CHECKPOINT=4"], self.service.heard())


class Stopped(Case):
    """The service does not read: it is stopped."""

    def test_words_that_matter_are_kept_in_order_and_bounded_and_nothing_waits(self) -> None:
        began = time.monotonic()
        for step in range(BACKLOG + 100):
            self.clock.now += 1
            _api.heartbeat(step)
            _api.checkpointed(step)
        self.assertLess(time.monotonic() - began, 5)
        self.assertGreater(_api.dropped(), 0)
        self.assertLessEqual(len(self.channel._backlog), BACKLOG)
        said = self.service.heard()
        while self.channel._backlog:  # it reads again
            self.channel.finish()
            said += self.service.heard()
        saved = [int(w.partition("=")[2]) for w in said if w.startswith("X_VIGIL_CHECKPOINT=")]
        self.assertEqual(list(range(len(saved))), saved)
        self.assertGreaterEqual(len(saved), BACKLOG)


class Hearing(Case):
    def listen(self) -> None:
        _api.heartbeat(1)
        self.service.heard()
        self.clock.now += 1

    def test_stop_is_seen_by_should_stop_and_stays(self) -> None:
        self.listen()
        self.assertFalse(_api.should_stop())
        self.service.order("STOP=1")
        self.assertTrue(_api.should_stop())
        self.assertTrue(_api.should_stop())

    def test_a_step_that_is_set_reaches_the_callback_and_is_acknowledged(self) -> None:
        taken = []
        _api.on_set_step(taken.append)
        self.listen()
        _api.heartbeat(2)  # sent
        _api.heartbeat(3)  # held back: it is of before the order
        self.service.order("SET_STEP=5000 SEQ=7")
        self.clock.now += 1
        _api.heartbeat(4)
        _api.heartbeat(5001)  # a first step again
        self.assertEqual([5000], taken)
        self.assertEqual(["X_VIGIL_STEP=2", "X_VIGIL_STEP=4", "X_VIGIL_ACK=7", "X_VIGIL_STEP=5001"], self.service.heard())

    def test_a_callback_that_raises_acknowledges_nothing_and_the_loop_goes_on(self) -> None:
        def broken(step: int) -> None:
            raise RuntimeError("cannot")

        _api.on_set_step(broken)
        self.listen()
        self.service.order("SET_STEP=5 SEQ=1")
        with self.assertLogs("vigil", "ERROR"):
            _api.heartbeat(2)
        self.assertEqual(["X_VIGIL_STEP=2"], self.service.heard())

    def test_pending_step_gives_the_newest_order_once(self) -> None:
        self.assertIsNone(_api.pending_step())
        self.service.order("SET_STEP=5 SEQ=1")
        self.service.order("SET_STEP=9 SEQ=2")
        self.assertEqual(9, _api.pending_step())
        self.assertIsNone(_api.pending_step())
        self.assertEqual(["X_VIGIL_ACK=2"], self.service.heard())

    def test_a_step_that_nobody_takes_is_not_acknowledged(self) -> None:
        self.listen()
        self.service.order("SET_STEP=5 SEQ=1")
        _api.heartbeat(2)
        self.assertEqual(["X_VIGIL_STEP=2"], self.service.heard())

    def test_junk_in_the_inbox_changes_nothing(self) -> None:
        self.listen()
        for junk in ("", "=", "SET_STEP=x SEQ=1", "SET_STEP=1", "\xff", "STOP=2"):
            self.service.order(junk)
        self.assertFalse(_api.should_stop())
        self.assertIsNone(_api.pending_step())

    def test_an_inbox_left_by_a_program_that_was_replaced_is_bound_again(self) -> None:
        self.listen()
        self.channel.abandon()  # as exec does
        self.use(Channel(self.service.environ(), self.clock))
        self.assertFalse(_api.should_stop())
        self.service.order("STOP=1")
        self.assertTrue(_api.should_stop())

    def test_an_inbox_whose_file_was_removed_is_bound_again(self) -> None:
        self.listen()
        os.unlink(self.service.inbox)
        self.clock.now += 1
        self.assertFalse(_api.should_stop())
        self.service.order("STOP=1")
        self.assertTrue(_api.should_stop())

    def test_a_second_process_does_not_take_the_inbox_away(self) -> None:
        self.listen()
        first = self.channel
        self.use(Channel(self.service.environ(), self.clock))
        self.assertFalse(_api.should_stop())
        self.service.order("STOP=1")
        self.assertFalse(_api.should_stop())
        first.listen()
        self.assertTrue(first.stop)


if __name__ == "__main__":
    unittest.main()
