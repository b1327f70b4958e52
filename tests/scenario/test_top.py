"""gaccctl top on a terminal of its own: it draws, follows the terminal's size, steers, quits, and gives the terminal back."""
import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import harness
from control_stubs import Fake, control_pb2


class Terminal:
    """A pseudo-terminal with a program in it, and what its screen shows."""

    def __init__(self, command, environment, directory, columns=80, rows=24):
        self.sent, self.decoder = "", codecs.getincrementaldecoder("utf-8")()
        self.cells, self.row, self.column = {}, 0, 0
        self.ready = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.read(self.ready[0], 1)  # the size is set
            os.chdir(directory)
            os.execve(command[0], command, dict(environment, TERM="xterm-256color"))
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.fd)
        os.write(self.ready[1], b"x")

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        """False: the program has closed it."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                text = self.decoder.decode(os.read(self.fd, 65536))
            except OSError:
                return False
            self.sent += text
            self.show(text)
        return True

    def show(self, text):
        for control, place, glyph in re.findall(r"(\x1b\[[?0-9;]*[A-Za-z])|([\r\n])|(.)", text, re.S):
            if place:
                self.row, self.column = (self.row, 0) if place == "\r" else (self.row + 1, self.column)
            elif glyph:
                self.cells[self.row, self.column] = glyph
                self.column += 1
            elif control.endswith("H"):
                self.row, self.column = (int(number) - 1 for number in control[2:-1].split(";"))
            elif control.endswith("J"):
                self.cells = {}
            elif control.endswith("K"):
                self.cells = {at: cell for at, cell in self.cells.items() if at[0] != self.row or at[1] < self.column}

    def lines(self):
        return ["".join(self.cells.get((row, column), " ") for column in range(self.columns)).rstrip() for row in range(self.rows)]

    def until(self, condition, what, limit=15):
        end = time.monotonic() + limit * harness.SLOWER
        while not condition(self):
            if time.monotonic() > end:
                raise AssertionError(f"not within {limit} s: {what}; it shows\n" + "\n".join(self.lines()))
            self.read(0.1)

    def shows(self, text, limit=15):
        self.until(lambda terminal: any(text in line for line in terminal.lines()), text, limit)

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def end(self, limit=10):
        """Its wait status; the terminal's modes must be those that it found."""
        deadline = time.monotonic() + limit * harness.SLOWER
        while True:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError("it does not end; it shows\n" + "\n".join(self.lines()))
        while select.select([self.fd], [], [], 0)[0] and self.read(0):
            pass
        return status

    def close(self):
        for fd in (self.fd, *self.ready):
            os.close(fd)


def status(**fields):
    ranks = [control_pb2.RankStatus(rank=i, host="here", state=6, step_seconds=0.1 + 0.1 * i) for i in range(2)]
    return control_pb2.Status(**{"job": "tiny", "output": "runs/tiny", "phase": "training", "step": 12, "optimizer_steps": 11,
                                 "total_steps": 20, "loss": 1.5, "started_unix_seconds": time.time() - 60, "ranks": ranks, **fields})


def record(behind, **line):
    return control_pb2.StepRecord(step=behind, json=json.dumps({"step": behind, **line}))


LINES = [record(step, type="step", verdict="apply", loss=3.0 - 0.1 * step) for step in range(1, 13)] + [
    record(12, type="event", text="too many skips"),
    record(12, type="control", step=13, optimizer_steps=12, method="Pause", by="uid 0", accepted=True)]  # before the line of its attempt


class Top(harness.Scenario):
    def setUp(self):
        super().setUp()
        self.environment["LC_ALL"] = "C.UTF-8"
        self.environment.pop("NO_COLOR", None)
        # A stream that does not end while its watcher is there.
        self.open = True
        self.fake = Fake(GetStatus=status(), WatchSteps=self.stream, Pause=control_pb2.Effect(step=13, optimizer_steps=12))
        self.addCleanup(self.fake.server.stop, None)

    def tearDown(self):
        self.open = False
        super().tearDown()

    def stream(self):
        yield from LINES
        while self.open:
            time.sleep(0.05)

    def top(self, *words, **environment):
        where = words or ("--connect", f"127.0.0.1:{self.fake.port}")
        terminal = Terminal([harness.GACCCTL, *where, "top"], dict(self.environment, **environment), self.directory)
        self.addCleanup(terminal.close)
        return terminal

    def given_back(self, terminal):
        self.assertTrue(terminal.sent.startswith("\x1b[?1049h"))
        self.assertEqual(terminal.sent.count("\x1b[?1049h"), terminal.sent.count("\x1b[?1049l"))
        self.assertEqual(terminal.sent.count("\x1b[?25l"), terminal.sent.count("\x1b[?25h"))
        self.assertEqual(terminal.sent.count("\x1b[?7l"), terminal.sent.count("\x1b[?7h"))
        self.assertEqual(termios.tcgetattr(terminal.fd), terminal.before)

    def test_it_draws_resizes_and_quits(self):
        terminal = self.top()
        terminal.shows("too many skips")
        terminal.shows("loss of the last 12 attempts")
        terminal.shows("      12 too many skips")
        terminal.shows("      13 Pause by uid 0")
        self.assertRegex(terminal.lines()[0], "^training  tiny in runs/tiny +up 0:0[01]:[0-9][0-9]$")
        self.assertTrue(terminal.lines()[23].startswith(" q quit  p pause"))
        self.assertNotEqual(termios.tcgetattr(terminal.fd), terminal.before)
        for columns, rows in ((120, 40), (40, 10), (10, 3), (80, 24)):
            terminal.resize(columns, rows)
            foot = {40: 39, 10: 9, 24: 23, 3: None}[rows]
            if foot is None:
                terminal.until(lambda shown: shown.lines() == ["training", "11/20   55", "loss 1.5"], "10x3")
            else:
                terminal.until(lambda shown: shown.lines()[foot].startswith(" q quit"), f"{columns}x{rows}")
        terminal.press("\x1b[A\x1b[15~\x1bOPx")  # an arrow, function keys, and a key without a meaning
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)
        self.given_back(terminal)

    def test_it_draws_anew_when_the_size_changes(self):
        """Also where the job is silent just then."""
        terminal = self.top()
        terminal.shows("too many skips")
        self.fake.answers["GetStatus"] = lambda: time.sleep(3) or status()
        time.sleep(1)  # the next question is under way
        while select.select([terminal.fd], [], [], 0.2)[0]:
            terminal.read(0)
        terminal.resize(60, 12)
        terminal.until(lambda shown: shown.lines()[11].startswith(" q quit"), "60x12", 1)
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)

    def test_signals_end_it_and_the_terminal_is_given_back(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            terminal = self.top()
            terminal.shows("tiny")
            os.kill(terminal.pid, number)
            self.assertEqual(os.WTERMSIG(terminal.end()), number)
            self.given_back(terminal)
        terminal = self.top()
        terminal.shows("tiny")
        terminal.press("\x03")  # Ctrl-C
        self.assertEqual(os.WTERMSIG(terminal.end()), signal.SIGINT)
        self.given_back(terminal)

    def test_it_steers_what_is_confirmed(self):
        terminal = self.top()
        terminal.shows("tiny")
        terminal.press("p")
        terminal.shows("pause behind this step?  y: yes")
        terminal.press("n")
        terminal.shows("q quit")
        self.assertNotIn("Pause", [method for method, _ in self.fake.asked])
        terminal.press("p")
        terminal.shows("y: yes")
        terminal.press("y")
        terminal.shows("paused after step 12 (attempt 13)")
        self.assertEqual([method for method, _ in self.fake.asked].count("Pause"), 1)
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)

    def test_colours_only_where_they_are_wanted(self):
        for environment, has in (({}, True), ({"NO_COLOR": "1"}, False)):
            terminal = self.top(**environment)
            terminal.shows("too many skips")
            terminal.press("q")
            self.assertEqual(terminal.end(), 0)
            self.assertEqual(bool(re.search(r"\x1b\[0;(1;)?[39]\dm", terminal.sent)), has)

    def test_a_locale_without_utf_8_gets_ascii(self):
        terminal = self.top(LC_ALL="C")
        terminal.shows("too many skips")
        terminal.shows("####")
        self.assertTrue(terminal.sent.isascii())
        terminal.press("q")
        terminal.end()

    def test_without_a_terminal_it_says_what_does_without(self):
        done = self.call(harness.GACCCTL, "--connect", f"127.0.0.1:{self.fake.port}", "top")
        self.assertEqual((done.status, done.out), (64, ""))
        self.assertIn("gaccctl watch", done.err)

    def test_where_no_job_is_the_screen_stays(self):
        terminal = self.top("--connect", "127.0.0.1:1")
        self.assertEqual(os.WEXITSTATUS(terminal.end()), 69)
        self.assertNotIn("\x1b", terminal.sent)

    def test_a_real_job_to_its_end(self):
        """In fp16, with ranks, skips and checkpoints; it waits for q behind the job's end, and leaves the last words."""
        job, text = harness.gpt(steps=3000, precision={"compute": "fp16", "loss_scale": {"initial": 2**20, "interval": 20}},
                                checkpoint={"every": 500})
        self.write("text.txt", text)
        running = self.start(job, output="runs/gpt").until_step(5)
        terminal = self.top("--run", "runs/gpt")
        terminal.shows("loss scale of the last")
        terminal.shows("own work")
        terminal.shows("checkpoint")
        terminal.shows("skip: overflow")
        self.assertRegex(terminal.lines()[1], r"^step \d+/3000 \[.*\] +\d+ %")
        terminal.shows("the job has ended", 60)
        terminal.shows("the job is done")
        self.assertEqual(running.wait().status, 0)
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)
        self.given_back(terminal)
        self.assertIn("the job has ended", terminal.sent.split("\x1b[?1049l")[1])

    def test_a_lost_connection(self):
        """It tries again, and goes on where it was."""
        terminal = self.top()
        terminal.shows("too many skips")
        self.fake.server.stop(None).wait()
        terminal.shows("q quits; trying again: ")
        self.fake = Fake(port=self.fake.port, GetStatus=status(phase="paused"), WatchSteps=self.stream)
        self.addCleanup(self.fake.server.stop, None)
        terminal.until(lambda shown: shown.lines()[0].startswith("paused  tiny"), "the other server")
        terminal.shows("q quit")
        terminal.until(lambda _: len(self.fake.asked) > 4, "some seconds")
        self.assertEqual([request.from_step for method, request in self.fake.asked if method == "WatchSteps"], [12])
        self.assertEqual(sum("too many skips" in line for line in terminal.lines()), 1)
        terminal.shows("loss of the last 12 attempts")
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)
        self.given_back(terminal)

    def test_a_job_that_is_killed(self):
        """How that ended stands there until q."""
        job, text = harness.gpt(steps=10**9)
        self.write("text.txt", text)
        running = self.start(job).until_step(3)
        terminal = self.top("--run", "run")
        terminal.shows("own work")
        os.kill(running.connection()["pid"], signal.SIGKILL)
        running.wait(20)
        terminal.shows("run: no job is running there; the last one is failed", 20)
        terminal.press("q")
        self.assertEqual(terminal.end(), 0)
        self.given_back(terminal)


if __name__ == "__main__":
    harness.main()
