"""genie-warden, the real program: its spec, its windows, and that whatever is killed, the undo is run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genie.engine.binaries import find_binary
from genie.errors import PlanError, RunAborted
from genie.faults.warden import (
    Armed,
    Spec,
    Status,
    Window,
    arm_argv,
    encode_spec,
    parse_armed,
    parse_status,
    request_argv,
    run_name,
    start_argv,
)

MS = 1_000_000
S = 1000 * MS
WARDEN = str(find_binary("genie-warden"))
TOLD = Window("told")


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """The condition's value once it is true."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
    return value


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@dataclass
class Home:
    """A folder for one warden, and a change for it to make: the file ``changed`` is there or not."""

    folder: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    armed: list[Armed] = field(default_factory=list)

    @property
    def dir(self) -> str:
        return str(self.folder / "warden")

    @property
    def changed(self) -> Path:
        return self.folder / "changed"

    @property
    def undone(self) -> list[str]:
        """A line for each time that the undo was run."""
        path = self.folder / "undone"
        return path.read_text().splitlines() if path.exists() else []

    def spec(self, window: Window = TOLD, ttl_ns: int = 60 * S, **other: Any) -> Spec:
        undo = ("sh", "-c", 'rm -f "$1" && echo undone >> "$2"', "undo", str(self.changed), str(self.folder / "undone"))
        return replace(
            Spec("run-1", "link_rate", ttl_ns, (undo,), (("touch", str(self.changed)),), window=window), **other
        )

    def call(self, argv: list[str], stdin: str | bytes = "") -> subprocess.CompletedProcess[str]:
        raw = stdin if isinstance(stdin, bytes) else stdin.encode()
        done = subprocess.run(argv, input=raw, capture_output=True, env=self.environment, timeout=30, cwd=self.folder)
        return subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), done.stderr.decode())

    def try_arm(self, spec: Spec | str | bytes, lock: str = "") -> subprocess.CompletedProcess[str]:
        text = encode_spec(spec) if isinstance(spec, Spec) else spec
        done = self.call(arm_argv(self.dir, lock, program=WARDEN), text)
        if done.returncode == 0:
            self.armed.append(parse_armed(done.stdout))
        return done

    def arm(self, spec: Spec, lock: str = "") -> Armed:
        done = self.try_arm(spec, lock)
        assert done.returncode == 0, done.stderr
        return self.armed[-1]

    def ask(self, request: Any, code: int = 0) -> Status:
        done = self.call(request_argv(self.dir, request, program=WARDEN))
        assert done.returncode == code, done.stderr
        return parse_status(done.stdout)

    def start(self, origin_ns: int) -> Status:
        done = self.call(start_argv(self.dir, origin_ns, program=WARDEN))
        assert done.returncode == 0, done.stderr
        return parse_status(done.stdout)

    def ended(self) -> Status:
        """The status once the warden has ended."""
        return wait_until(lambda: (status := self.ask("status")) and not status.alive and status)

    def kill(self, number: int = signal.SIGKILL, guardian: bool = False) -> None:
        os.kill(self.armed[-1].guardian_pid if guardian else self.armed[-1].pid, number)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    for armed in made.armed:
        for pid in (armed.guardian_pid, armed.pid):
            if not gone(pid) and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(WARDEN.encode()):
                os.kill(pid, signal.SIGKILL)


def names(status: Status) -> list[str]:
    return [event["event"] for event in status.events]


# ---- the spec -------------------------------------------------------------------------------------------------------


def test_a_spec_is_a_record_a_line() -> None:
    spec = Spec(
        run="r1",
        fault="link_rate",
        ttl_ns=30 * S,
        undo=(("tc", "qdisc", "change", "rate", "100mbit"),),
        do=(("tc", "a\tb", "c\nd", "e\\f", ""),),
        check=(("tc", "-j", "qdisc"),),
        window=Window("periodic", at_ns=1, period_ns=500 * MS, open_ns=100 * MS, for_ns=5 * S),
    )
    assert encode_spec(spec) == (
        "run\tr1\n"
        "fault\tlink_rate\n"
        "ttl_ns\t30000000000\n"
        "do\ttc\ta\\tb\tc\\nd\te\\\\f\t\n"
        "undo\ttc\tqdisc\tchange\trate\t100mbit\n"
        "check\ttc\t-j\tqdisc\n"
        "window\tperiodic\t1\t500000000\t100000000\t5000000000\n"
    )


GOOD = Spec("r", "f", S, (("true",),), (("true",),))


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        pytest.param(replace(GOOD, run="a b"), "run 'a b'", id="run with a blank"),
        pytest.param(replace(GOOD, fault=""), "fault ''", id="no fault"),
        pytest.param(replace(GOOD, fault="-x"), "fault '-x'", id="fault that looks like an option"),
        pytest.param(replace(GOOD, run="r\n"), "run", id="run with an end of line"),
        pytest.param(replace(GOOD, ttl_ns=0), "ttl_ns", id="no time limit"),
        pytest.param(replace(GOOD, undo=()), "no undo", id="no undo"),
        pytest.param(replace(GOOD, do=(), window=TOLD), "nothing to do", id="window without do"),
        pytest.param(replace(GOOD, do=((),)), "no program", id="empty command"),
        pytest.param(replace(GOOD, do=(("a", "b\0"),)), "NUL", id="NUL"),
        pytest.param(replace(GOOD, do=(("a", "\ud800"),)), "half a character", id="surrogate"),
        pytest.param(replace(GOOD, do=(("a",) * 600,)), "600 words", id="too many words"),
        pytest.param(replace(GOOD, do=(("a",),) * 5000), "5000 commands", id="too many commands"),
        pytest.param(replace(GOOD, do=(("a", "b" * (1 << 20)),)), "bytes", id="too long"),
        pytest.param(replace(GOOD, window=Window("timed", at_ns=-1)), "at_ns", id="window before the origin"),
        pytest.param(
            replace(GOOD, window=Window("periodic", period_ns=S, open_ns=S)), "must be less", id="always open"
        ),
    ],
)
def test_a_spec_that_would_be_refused_is_not_encoded(spec: Spec, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        encode_spec(spec)


HEAD = "run\tr\nfault\tf\nttl_ns\t1000000000\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "ends without a 'window'", id="nothing"),
        pytest.param(HEAD + "undo\ttrue\n", "ends without a 'window'", id="cut off between lines"),
        pytest.param(HEAD + "undo\ttrue\nwindow\twhole", "cut short", id="cut off within a line"),
        pytest.param(HEAD + "window\twhole\n", "no 'undo'", id="no undo"),
        pytest.param(HEAD + "undo\ttrue\nwindow\ttold\n", "no 'do'", id="told without do"),
        pytest.param(HEAD + "undo\ttrue\nwindow\twhole\ndo\ttrue\n", "line 6: 'window' is the last", id="more follows"),
        pytest.param(HEAD + "run\tr\n", "line 4: 'run' is given twice", id="twice"),
        pytest.param(HEAD + "redo\ttrue\n", "line 4: no record 'redo'", id="unknown record"),
        pytest.param("run\ta/b\n", "is a name", id="bad name"),
        pytest.param("run\ta\tb\n", "expected 1 fields", id="too many fields"),
        pytest.param("ttl_ns\t-5\n", "expected nanoseconds", id="negative"),
        pytest.param("ttl_ns\t1e9\n", "expected nanoseconds", id="no whole number"),
        pytest.param("ttl_ns\t99999999999999999999\n", "expected nanoseconds", id="beyond 64 bits"),
        pytest.param("ttl_ns\t5\n", "expected 10000000 to", id="too soon"),
        pytest.param("do\n", "no program", id="empty command"),
        pytest.param("do\ta\\x\n", "after a backslash", id="unknown escape"),
        pytest.param("do\ta\\\n", "after a backslash", id="backslash at the end"),
        pytest.param(b"do\ta\0b\n", "NUL", id="NUL"),
        pytest.param(b"do\t" + b"a" * (1 << 20) + b"\n", "longer than", id="too long"),
        pytest.param(HEAD + "later\ttrue\nundo\ttrue\nwindow\twhole\n", "go together", id="later without a time"),
        pytest.param("window\tsometimes\n", "whole, timed, periodic or told", id="unknown window"),
        pytest.param("window\tperiodic\t0\t50000000\t50000000\t0\n", "less than its period", id="always open"),
    ],
)
def test_a_bad_spec_is_refused_and_leaves_nothing(home: Home, text: str | bytes, says: str) -> None:
    done = home.try_arm(text)
    assert done.returncode == 1
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path(home.dir).exists()


RECORDS = (
    b"run\tr\n|fault\tf\n|ttl_ns\t1000000000\n|do\ttrue\n|undo\ttrue\n|check\ttrue\n|window\twhole\n|window\ttold\n"
)
PIECES = st.sampled_from([*RECORDS.split(b"|"), b"window\ttimed\t0\t0\n", b"\\", b"\t", b"\0", b"\n", b"9" * 30])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(PIECES, st.binary(max_size=8)), max_size=12).map(b"".join))
def test_whatever_it_is_told_it_arms_or_leaves_nothing(home: Home, text: bytes) -> None:
    done = home.try_arm(text)
    assert done.returncode in (0, 1)
    if done.returncode == 0:
        assert home.ask("disarm").state == "disarmed"
        for path in Path(home.dir).iterdir():
            path.unlink()
        Path(home.dir).rmdir()
    assert not Path(home.dir).exists()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20), max_size=6))
def test_every_word_reaches_the_command_as_it_was(home: Home, words: list[str]) -> None:
    out = home.folder / "words"
    write = ("sh", "-c", 'out=$1; shift; printf "%s\\0" "$@" > "$out"', "sh", str(out), "", *words)
    home.arm(home.spec(do=(write,)))
    home.ask("open")
    home.ask("revert")
    assert out.read_bytes().split(b"\0")[:-1] == [word.encode() for word in ("", *words)]


def test_an_answer_of_something_else_is_told() -> None:
    for text in ("", "bash: genie-warden: command not found", "[]", "{}", '{"pid": "x"}'):
        with pytest.raises(RunAborted, match="genie-warden"):
            parse_status(text)
        with pytest.raises(RunAborted, match="genie-warden"):
            parse_armed(text)


# ---- arming ---------------------------------------------------------------------------------------------------------


def test_armed_it_stands_by_and_holds_nothing_of_its_caller(home: Home) -> None:
    reads, writes = os.pipe()
    argv = arm_argv(home.dir, program=WARDEN)
    before = time.monotonic_ns()
    done = subprocess.run(argv, input=encode_spec(home.spec()).encode(), capture_output=True, pass_fds=[writes])
    armed = parse_armed(done.stdout.decode())
    home.armed.append(armed)
    os.close(writes)
    assert os.read(reads, 1) == b""  # nobody holds the other end any more
    os.close(reads)
    assert before + 60 * S <= armed.ttl_end_mono_ns <= time.monotonic_ns() + 60 * S
    status = home.ask("status")
    assert (status.state, status.alive, status.may_be_applied, names(status)) == ("armed", True, False, ["armed"])
    assert Path(f"/proc/{armed.pid}/cwd").resolve() == Path("/")
    assert os.getsid(armed.pid) not in (os.getsid(0), armed.pid)
    assert stat.S_IMODE(Path(home.dir).stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in Path(home.dir).iterdir()} == {0}


def test_a_second_warden_in_the_same_folder_is_refused(home: Home) -> None:
    first = home.arm(home.spec())
    done = home.try_arm(home.spec())
    assert done.returncode == 1
    assert f"armed in {home.dir} already, pid {first.pid}" in done.stderr
    assert home.ask("status").alive


def test_a_folder_can_be_used_again_after_the_end(home: Home) -> None:
    home.arm(home.spec())
    home.ask("open")
    home.ask("revert")
    home.arm(home.spec())
    assert names(home.ask("status")) == ["armed"]
    assert "reverted" in (Path(home.dir) / "log.before").read_text()


def test_a_folder_of_another_user_is_refused(home: Home) -> None:
    done = home.call(arm_argv("/proc/1", program=WARDEN), encode_spec(home.spec()))
    assert done.returncode == 1
    assert done.stderr.startswith("genie-warden: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user_is_not_answered(home: Home) -> None:
    home.arm(home.spec())
    with socket.socket(socket.AF_UNIX) as client:
        here = Path.cwd()
        os.chdir(home.dir)
        try:
            Path("socket").chmod(0o777)
            Path(home.dir).chmod(0o711)
            os.seteuid(65534)
            client.connect("socket")
        except PermissionError:
            pytest.skip("the folders above are closed to others")
        finally:
            os.seteuid(0)
            os.chdir(here)
        with contextlib.suppress(BrokenPipeError):  # it may have answered and hung up by now
            client.sendall(b"revert\n")
        answer = json.loads(client.makefile().readline())
    assert answer["error"] == "this warden answers its own user only"
    assert home.ask("status").alive


# ---- windows --------------------------------------------------------------------------------------------------------


def test_a_told_window_opens_and_closes_when_told(home: Home) -> None:
    home.arm(home.spec(check=(("cat", str(home.folder / "proof")),)))
    (home.folder / "proof").write_bytes(b'in "effect"\xff\n')
    assert home.ask("close").ok  # nothing is open: nothing to do
    assert not home.undone
    for turn in (1, 2):
        assert home.ask("open").state == "open"
        assert home.ask("open").state == "open"
        assert home.changed.exists()
        assert home.ask("close").state == "closed"
        assert not home.changed.exists()
        assert len(home.undone) == turn
    status = home.ask("disarm")
    assert names(status) == ["armed", *["opening", "opened", "checked", "checked", "closed"] * 2, "disarmed"]
    assert status.checks == ('in "effect"\ufffd\n',) * 4
    assert [opening.index for opening in status.openings] == [0, 1]
    for opening in status.openings:
        assert opening.planned_start_ns <= opening.began_ns < opening.in_effect_ns
        assert opening.in_effect_ns < opening.planned_end_ns <= opening.undo_began_ns < opening.ended_ns
    assert status.windows == tuple((opening.began_ns, opening.ended_ns) for opening in status.openings)
    assert not status.failures


def test_what_is_to_follow_follows_in_a_window_still_open(home: Home) -> None:
    late = home.folder / "late"
    home.arm(home.spec(later=(("touch", str(late)),), later_after_ns=S))
    home.ask("open")
    home.ask("close")
    home.ask("open")
    status = wait_until(lambda: "later" in names(said := home.ask("status")) and said)
    assert late.exists()
    assert names(status) == ["armed", "opening", "opened", "closed", "opening", "opened", "later"]
    assert status.events[-1]["began_mono_ns"] >= status.openings[1].in_effect_ns + S
    assert home.ask("revert").state == "reverted"


def test_what_was_to_follow_and_fails_is_undone(home: Home) -> None:
    home.arm(home.spec(later=(("false",),), later_after_ns=MS))
    home.ask("open")
    status = wait_until(lambda: (said := home.ask("status")).state == "failed" and said)
    assert status.failures == ("later false: exit code 1",)
    assert not home.changed.exists()
    kill_both(home)
    assert home.ask("status").state == "failed"


def test_a_timed_window_keeps_its_time(home: Home) -> None:
    home.arm(home.spec(Window("timed", at_ns=50 * MS, for_ns=60 * MS)))
    origin = time.monotonic_ns()
    home.start(origin)
    home.start(origin)  # asked again, the answer having been lost
    assert "already started" in home.call(start_argv(home.dir, origin + 1, program=WARDEN)).stderr
    status = wait_until(lambda: (said := home.ask("status")).state == "closed" and said)
    (opening,) = status.openings
    assert opening.planned_start_ns == origin + 50 * MS
    assert opening.planned_end_ns == origin + 110 * MS
    assert 0 <= opening.began_ns - opening.planned_start_ns < 500 * MS  # idle: 0.1 ms
    assert 0 <= opening.undo_began_ns - opening.planned_end_ns < 500 * MS
    assert home.undone == ["undone"]
    assert home.ask("revert").state == "reverted"
    assert home.undone == ["undone"]  # not again


def test_an_origin_in_the_past_is_kept_and_told(home: Home) -> None:
    home.arm(home.spec(Window("timed", at_ns=0, for_ns=60 * S)))
    origin = time.monotonic_ns() - S
    home.start(origin)
    status = wait_until(lambda: (said := home.ask("status")).state == "open" and said)
    assert status.openings[0].planned_start_ns == origin
    assert status.openings[0].began_ns >= origin + S
    assert status.windows[0][1] == 0
    status = home.ask("revert")
    assert status.windows[0][1] > status.windows[0][0]
    assert not home.changed.exists()


def test_a_window_that_is_over_is_missed_not_made_up_for(home: Home) -> None:
    home.arm(home.spec(Window("timed", at_ns=0, for_ns=10 * MS)))
    home.start(time.monotonic_ns() - S)
    status = home.ask("disarm")
    assert names(status) == ["armed", "started", "missed", "disarmed"]
    assert not status.openings
    assert "1 windows from number 0 on were over" in status.failures[0]


def test_periodic_windows_repeat_for_their_time(home: Home) -> None:
    window = Window("periodic", at_ns=30 * MS, period_ns=100 * MS, open_ns=40 * MS, for_ns=320 * MS)
    home.arm(home.spec(window))
    origin = time.monotonic_ns()
    home.start(origin)
    wait_until(lambda: time.monotonic_ns() > origin + 400 * MS)
    status = wait_until(lambda: (said := home.ask("status")).state == "closed" and said)
    missed = sum(event["windows"] for event in status.events if event["event"] == "missed")  # on a busy machine
    assert len(status.openings) + missed == 4
    for opening in status.openings:
        assert opening.planned_start_ns == origin + (30 + 100 * opening.index) * MS
        # The last one is cut short by the end of them all.
        assert opening.planned_end_ns == origin + (350 if opening.index == 3 else 70 + 100 * opening.index) * MS
    assert len(home.undone) == len(status.openings)
    assert home.ask("disarm").state == "disarmed"


def test_periodic_windows_go_on_until_reverted(home: Home) -> None:
    home.arm(home.spec(Window("periodic", period_ns=20 * MS, open_ns=10 * MS)))
    home.start(time.monotonic_ns() - 1000 * S)
    status = wait_until(lambda: len((said := home.ask("status")).openings) >= 3 and said)
    assert status.events[2]["event"] == "missed"
    assert status.openings[0].index >= 50_000
    status = home.ask("revert")
    assert all(end > start for start, end in status.windows)
    assert not home.changed.exists()


@pytest.mark.parametrize(
    ("window", "request_", "says"),
    [
        pytest.param(Window(), "open", "open is for a told window", id="open a whole window"),
        pytest.param(TOLD, "mark-applied", "mark-applied is for a whole window", id="mark a told window"),
        pytest.param(Window("timed"), "close", "close is for a told window", id="close a timed window"),
    ],
)
def test_a_request_that_does_not_fit_the_window_is_refused(
    home: Home, window: Window, request_: str, says: str
) -> None:
    home.arm(home.spec(window))
    assert home.ask(request_, code=1).error == says


def test_start_is_refused_where_nothing_is_timed(home: Home) -> None:
    home.arm(home.spec())
    done = home.call(start_argv(home.dir, 5, program=WARDEN))
    assert (done.returncode, done.stderr) == (1, "genie-warden: start is for timed and periodic windows\n")


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_do_that_fails_is_undone_and_told(home: Home) -> None:
    fails = ("sh", "-c", "echo no such device >&2; exit 3")
    home.arm(home.spec(do=(("touch", str(home.changed)), fails, ("touch", str(home.folder / "never")))))
    assert home.ask("open", code=1).error == "do sh: exit code 3: no such device"
    status = wait_until(lambda: (said := home.ask("status")).state == "failed" and said)
    assert not home.changed.exists()
    assert not (home.folder / "never").exists()
    assert "an earlier do failed" in home.ask("open", code=1).error
    assert status.alive
    assert not status.openings
    assert status.failures == ("do sh -c echo no such device >&2; exit 3: exit code 3: no such device",)
    failed = next(event for event in status.events if event["event"] == "failed")
    assert (failed["phase"], failed["number"], failed["rc"], failed["stderr"]) == ("do", 1, 3, "no such device\n")


def test_a_do_that_hangs_ends_at_the_time_limit(home: Home) -> None:
    home.arm(home.spec(ttl_ns=S, do=(("sleep", "1000"),)))
    assert "killed at its time limit" in home.ask("open", code=1).error
    assert home.ended().state == "fired"
    assert home.undone


def test_a_program_that_is_missing_is_told(home: Home) -> None:
    home.arm(home.spec(do=(("genie-nothing", "-x"),), check=()))
    assert home.ask("open", code=1).error == "do genie-nothing: cannot be run: No such file or directory"


def test_a_check_that_fails_or_outlasts_its_window_does_not_hold_it_open(home: Home) -> None:
    home.arm(home.spec(Window("timed", for_ns=500 * MS), check=(("false",), ("sleep", "1000"))))
    home.start(time.monotonic_ns())
    status = wait_until(lambda: (said := home.ask("status")).state == "closed" and said)
    assert status.failures == ("check false: exit code 1", "check sleep 1000: killed at its time limit")
    assert not home.changed.exists()


def test_a_check_may_say_more_than_the_log_takes(home: Home) -> None:
    home.arm(home.spec(check=(("head", "-c", "200000", "/dev/zero"),)))
    home.ask("open")
    checked = wait_until(lambda: [event for event in home.ask("status").events if event["event"] == "checked"])
    assert (len(checked[0]["stdout"]), checked[0]["cut"]) == (65536, True)


def test_an_undo_that_fails_is_tried_again(home: Home) -> None:
    key = home.folder / "key"
    home.arm(home.spec(undo=(("test", "-e", str(key)), ("rm", "-f", str(home.changed)))))
    home.ask("open")
    assert "undo test: exit code 1; the warden goes on trying" in home.ask("revert", code=1).error
    assert not home.changed.exists()  # the rest was undone all the same
    assert home.ask("status").may_be_applied
    assert "the warden is ending" in home.ask("close", code=1).error
    key.touch()
    status = home.ended()
    assert status.state == "reverted"
    assert status.failures
    assert not status.may_be_applied


def test_a_full_disk_keeps_the_do_from_running_but_not_the_undo(home: Home) -> None:
    # A log that may not grow stands for a disk without room.
    argv = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *arm_argv(home.dir, program=WARDEN)]
    done = home.call(argv, encode_spec(home.spec(check=(("head", "-c", "400", "/dev/zero"),))))
    home.armed.append(parse_armed(done.stdout))
    assert home.ask("open").ok
    wait_until(lambda: "File too large" in "".join(home.ask("status").failures))
    assert home.ask("close").ok
    assert not home.changed.exists()
    assert "write log: File too large" in home.ask("open", code=1).error
    assert not home.changed.exists()
    assert home.ask("revert").state == "reverted"


# ---- the dead-man's switch ------------------------------------------------------------------------------------------


def into_state(home: Home, state: str, ttl_ns: int = 60 * S) -> None:
    """Armed, and as far as ``state``; the change is made, but for "armed"."""
    if state in ("armed", "changing"):
        home.arm(home.spec(Window(), ttl_ns))
        if state == "changing":
            home.ask("mark-applied")
            home.ask("mark-applied")
            home.changed.touch()
    elif state == "told":
        home.arm(home.spec(TOLD, ttl_ns))
        home.ask("open")
    else:
        home.arm(home.spec(Window("timed"), ttl_ns))
        home.start(time.monotonic_ns())
        wait_until(lambda: home.ask("status").state == "open")


@pytest.mark.parametrize("state", ["changing", "told", "timed"])
def test_the_time_limit_reverts_in_any_state(home: Home, state: str) -> None:
    into_state(home, state, S)
    status = home.ended()
    assert not home.changed.exists()
    assert home.undone == ["undone"]
    assert (status.state, status.fired, status.may_be_applied) == ("fired", True, False)
    assert status.failures == ("the time limit passed, the warden reverted the change",)
    fired = next(event for event in status.events if event["event"] == "fired")
    assert fired["mono_ns"] >= home.armed[-1].ttl_end_mono_ns
    for request in ("disarm", "revert"):
        assert names(home.ask(request)) == names(status)
    assert home.undone == ["undone"]


def test_the_time_limit_of_what_was_never_begun_only_ends_the_warden(home: Home) -> None:
    into_state(home, "armed", 20 * MS)
    status = home.ended()
    assert (status.state, home.undone) == ("fired", [])
    assert "no warden lives" in home.ask("mark-applied", code=1).error


@pytest.mark.parametrize("state", ["told", "timed"])
def test_a_killed_worker_is_undone_at_once_by_its_guardian(home: Home, state: str) -> None:
    into_state(home, state)
    home.kill()
    status = home.ended()
    assert not home.changed.exists()
    assert home.undone == ["undone"]
    assert status.state == "reverted"
    assert names(status)[-3:] == ["guardian", "closed", "reverted"]
    assert status.windows[0][1] > 0
    assert "was killed (signal 9)" in status.failures[0]


def test_a_worker_killed_before_any_change_has_nothing_to_undo(home: Home) -> None:
    into_state(home, "armed")
    home.kill()
    assert names(home.ended()) == ["armed", "guardian", "reverted"]
    assert not home.undone


def test_a_worker_killed_while_the_controller_changes_is_undone_and_the_watch_goes_on(home: Home) -> None:
    into_state(home, "changing", 2 * S)
    home.kill()
    wait_until(lambda: home.undone)
    assert "was killed and its change undone" in home.ask("mark-applied", code=1).error
    home.changed.touch()  # the controller's do was still under way
    status = home.ended()
    assert not home.changed.exists()
    assert status.state == "fired"
    assert names(status) == ["armed", "changing", "guardian", "undone", "fired", "reverted"]


def test_a_command_whose_worker_is_killed_does_not_go_on(home: Home) -> None:
    begun = home.folder / "begun"
    home.arm(
        home.spec(
            do=(
                ("sh", "-c", 'touch "$2"; echo $$ > "$1"; sleep 1000; touch "$2"', "sh", str(begun), str(home.changed)),
            )
        )
    )
    with subprocess.Popen(request_argv(home.dir, "open", program=WARDEN), stdout=-1, stderr=-1) as asking:
        pid = int(wait_until(lambda: begun.exists() and begun.read_text().strip()))
        home.kill()
        status = home.ended()
        asking.communicate()
    assert asking.returncode == 1
    assert gone(pid)
    assert not home.changed.exists()
    assert status.state == "reverted"


def kill_both(home: Home) -> None:
    home.kill(guardian=True)
    home.kill()
    wait_until(lambda: gone(home.armed[-1].pid) and gone(home.armed[-1].guardian_pid))


def test_with_both_killed_revert_does_it_once(home: Home) -> None:
    into_state(home, "told")
    kill_both(home)
    status = home.ask("status")
    assert (status.state, status.alive, status.may_be_applied) == ("open", False, True)
    refused = home.try_arm(home.spec())
    assert refused.returncode == 1
    assert f"run genie-warden revert --dir {home.dir} first" in refused.stderr
    assert home.ask("open", code=1).error == f"no warden lives in {home.dir}, it is open"
    status = home.ask("revert")
    assert (status.state, status.may_be_applied, home.undone) == ("reverted", False, ["undone"])
    assert status.windows[0][1] > 0
    home.ask("revert")
    home.ask("disarm")
    assert home.undone == ["undone"]


def test_with_both_killed_disarm_believes_the_controller(home: Home) -> None:
    into_state(home, "changing")
    kill_both(home)
    assert home.ask("disarm").state == "disarmed"
    assert not home.undone


def test_a_torn_line_at_the_end_of_the_log_is_no_line(home: Home) -> None:
    into_state(home, "told")
    kill_both(home)
    with (Path(home.dir) / "log").open("a") as log:
        log.write('{"mono_ns":5,"real_ns":5,"event":"reverted"}')
    assert home.ask("status").may_be_applied
    assert names(home.ask("revert"))[-2:] == ["closed", "reverted"]
    assert home.undone


def test_nothing_was_ever_armed_here(home: Home) -> None:
    Path(home.dir).mkdir()
    for request in ("status", "revert", "disarm"):
        assert f"no warden was ever armed in {home.dir}" in home.ask(request, code=1).error


def test_a_lost_connection_and_a_shutdown(home: Home) -> None:
    into_state(home, "told")
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        home.kill(number, guardian=True)
    home.kill(signal.SIGHUP)
    assert home.ask("status").alive
    home.kill(signal.SIGTERM)
    status = home.ended()
    assert (status.state, status.events[-1]["by"]) == ("reverted", "SIGTERM")
    assert home.undone == ["undone"]


def test_a_client_that_says_nothing_holds_nobody_up(home: Home) -> None:
    home.arm(home.spec())
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as client:
        os.chdir(home.dir)
        try:
            client.connect("socket")
        finally:
            os.chdir(here)
        client.sendall(b"stat")
        assert home.ask("open").state == "open"
        assert home.ask("revert").state == "reverted"


# ---- the host's lock, and systemd -----------------------------------------------------------------------------------


def test_one_run_at_a_time_has_the_host(home: Home) -> None:
    lock = str(home.folder / "genie.lock")
    others = [Home(home.folder / name, armed=home.armed) for name in ("same", "other")]
    for other in others:
        other.folder.mkdir()
    same, other = others
    home.arm(home.spec(), lock)
    same.arm(same.spec(fault="link_loss", ttl_ns=600 * S), lock)
    run, end_ns = Path(lock).read_text().split()
    assert (run, int(end_ns) > time.time_ns() + 500 * S) == ("run-1", True)
    refused = other.try_arm(other.spec(run="run-2"), lock)
    assert refused.returncode == 1
    assert refused.stderr.startswith("genie-warden: host is locked by run run-1 until 20")
    assert not Path(other.dir).exists()
    home.ask("disarm")
    assert other.try_arm(other.spec(run="run-2"), lock).returncode == 1
    same.ask("revert")
    wait_until(lambda: other.try_arm(other.spec(run="run-2"), lock).returncode == 0)
    assert Path(lock).read_text().split()[0] == "run-2"


def double(home: Home, name: str, code: int = 0) -> None:
    """A stand-in for a program of systemd, which notes what it was told."""
    folder = home.folder / "bin"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "{name} $*" >> "{home.folder}/systemd"\nexit {code}\n')
    path.chmod(0o755)
    home.environment |= {"PATH": f"{folder}:{os.environ['PATH']}", "GENIE_WARDEN_SYSTEMD": str(folder)}


@pytest.mark.parametrize("end", ["disarm", "revert"])
def test_where_systemd_runs_it_stands_by_too(home: Home, end: str) -> None:
    double(home, "systemd-run")
    double(home, "systemctl")
    assert home.arm(home.spec()).backup == "genie-warden-run-1-link_rate"
    home.ask("open")
    said = (home.folder / "systemd").read_text()
    for part in ("--collect", "--unit=genie-warden-run-1-link_rate ", "--on-active=65000ms", "AccuracySec=100ms"):
        assert part in said
    assert said.endswith(f"{WARDEN} revert --dir {home.dir}\n")
    home.ask(end)
    assert (home.folder / "systemd").read_text().endswith("systemctl stop --quiet genie-warden-run-1-link_rate.timer\n")


def test_with_both_killed_systemd_calls_revert(home: Home) -> None:
    double(home, "systemd-run")
    double(home, "systemctl")
    into_state(home, "told")
    kill_both(home)
    argv = (home.folder / "systemd").read_text().split()
    assert home.call(argv[argv.index(WARDEN) :]).returncode == 0
    assert home.undone == ["undone"]
    assert "systemctl stop" in (home.folder / "systemd").read_text()


def test_a_systemd_that_refuses_is_told(home: Home) -> None:
    double(home, "systemd-run", code=1)
    armed = home.arm(home.spec())
    assert (armed.backup, armed.backup_error) == ("", "systemd-run: exit code 1")


def test_the_undo_is_not_run_in_another_network_namespace(home: Home) -> None:
    inside = ["unshare", "--user", "--map-current-user", "--net"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no network namespaces here")
    into_state(home, "told")
    kill_both(home)
    done = home.call([*inside, *request_argv(home.dir, "revert", program=WARDEN)])
    assert done.returncode == 1
    assert "the change was made in network namespace net:[" in done.stderr
    assert not home.undone
    home.ask("revert")
    assert home.undone


@pytest.mark.parametrize("name", ["20261129-1-a+b-moe", "my run", "..", "x" * 200, "-rf", "läuft"])
def test_any_run_directory_gives_a_name_that_is_taken(name: str) -> None:
    taken = Spec(run=run_name(Path(name)), fault="f", ttl_ns=S, undo=(("true",),))
    assert taken.run in encode_spec(taken)
