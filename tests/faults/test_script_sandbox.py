"""Hostile scripts (T53 to T56): none gets out, none stays, none leaves anything, and others are not disturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.script_corpus import ESCAPES, MEMORY, RUNAWAYS
from tests.support.polling import until

from stepwell import ExecutionFailed, Limits, Status, Stepwell, step
from stepwell.flow import define, parallel, script

WAIT = 60
LIMIT_MS = 300
told: dict[str, threading.Event] = {"inside": threading.Event(), "go": threading.Event()}


@step(name="sandbox.wait")
def wait_here() -> None:
    told["inside"].set()
    told["go"].wait(WAIT)


@pytest.fixture(scope="module")
def well() -> Iterator[Stepwell]:
    with Stepwell("memory://", limits=Limits(script_ms=LIMIT_MS, script_memory_bytes=32 * 1024 * 1024)) as opened:
        for name in ("owner-a", "owner-b", "killed"):
            opened.workspaces.put(name)
        yield opened


@pytest.fixture
def patient_well() -> Iterator[Stepwell]:
    """A well with time enough for scripts that end by themselves, however busy the machine is."""
    with Stepwell("memory://", limits=Limits(script_memory_bytes=32 * 1024 * 1024)) as opened:
        yield opened


def outcome(well: Stepwell, code: str) -> str:
    """Return a script's result, or the failure of its run, as a text."""
    try:
        return repr(well.start(define("hostile", script(code), version=next(_versions)), {}).result(WAIT))
    except ExecutionFailed as error:
        return error.message


_versions = iter(range(1, 10_000))


def processes() -> list[int]:
    """The ids of the Lua processes that are children of this one."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            fields = (place / "stat").read_text().rsplit(") ", 1)[1].split()
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and b"lua_process" in command:
            found.append(int(place.name))
    return found


def test_there_are_at_least_100_hostile_scripts() -> None:
    codes = [each.code for each in ESCAPES] + list(RUNAWAYS) + list(MEMORY)
    assert len(set(codes)) == len(codes) >= 100


def test_no_script_escapes(patient_well: Stepwell) -> None:
    found = [(each, outcome(patient_well, each.code)) for each in ESCAPES]
    wrong = [(each.code, each.refusal, said) for each, said in found if not re.search(each.refusal, said)]
    assert wrong == []
    assert list(patient_well.state.workspace("default").all()) == []


def test_runaways_are_ended_and_leave_nothing(well: Stepwell) -> None:
    for code in RUNAWAYS:
        said = outcome(well, f"State.set('left', 1) {code}")
        assert "script_ms=300" in said, (code, said)
    assert well.state.workspace("default").get("left") is None
    assert outcome(well, "return 1") == "1"


def test_memory_of_a_script_is_bounded(well: Stepwell) -> None:
    for code in MEMORY:
        said = outcome(well, f"State.set('left', 1) {code}")
        assert re.search("script_memory_bytes|script_ms|too many results|more than", said), (code, said)
    for pid in processes():
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert int(lines["VmHWM"].split()[0]) < (32 + 16 + 48) * 1024  # Lua's, the copies, and Python with lupa
    assert well.state.workspace("default").get("left") is None


def test_a_runaway_does_not_keep_other_scripts_waiting_for_ever(well: Stepwell) -> None:
    branches = {f"b{number}": script("while true do end" if number % 2 else "return 1", on_error="continue") for number in range(6)}
    found = well.start(define("sandbox-many", parallel(branches=branches)), {}).result(WAIT)
    assert [found[f"b{number}"] for number in range(6)] == [1, None] * 3


def test_processes_are_kept_by_workspace(well: Stepwell) -> None:
    definition = define("sandbox-owner", script("return 1"))
    well.start(definition, {}, workspace="owner-a").result(WAIT)
    before = set(processes())
    well.start(definition, {}, workspace="owner-a").result(WAIT)
    assert set(processes()) == before
    well.start(definition, {}, workspace="owner-b").result(WAIT)
    assert set(processes()) - before


def test_killed_process_of_a_script_fails_the_step_and_leaves_nothing(well: Stepwell) -> None:
    told["inside"].clear()
    told["go"].clear()
    code = "State.set('left', 1) Tool.execute('sandbox.wait') State.set('right', 1)"
    run = well.start(define("sandbox-killed", script(code)), {}, workspace="killed")
    assert told["inside"].wait(WAIT)
    for pid in processes():
        os.kill(pid, signal.SIGKILL)
    told["go"].set()
    with pytest.raises(ExecutionFailed, match="ended by signal SIGKILL"):
        run.result(WAIT)
    assert list(well.state.workspace("killed").all()) == []
    assert outcome(well, "return 1") == "1"


def test_process_that_is_killed_while_it_waits_is_not_given_a_script(well: Stepwell) -> None:
    assert outcome(well, "return 1") == "1"
    waiting = processes()
    assert waiting
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes())
    assert outcome(well, "return 2") == "2"


WRITES = "State.set('a', (State.get('a') or 0) + 1) Tool.execute('sandbox.mark') State.set('b', 1) return State.get('a')"
ASKS = """
local count = 0
Workflow.loop{name = 'w', while_condition = function() return count < 2 end, max_iterations = 9, body = {
    {name = 'a', type = 'custom', execute = function()
        count = count + 1
        State.set('a', (State.get('a') or 0) + 0.5)
    end},
    {name = 'b', tool = 'sandbox.mark', input = {}, on_complete = function() State.set('b', 1) end}}}:execute()
return State.get('a')
"""


@pytest.mark.parametrize("code", [WRITES, ASKS], ids=["between_writes", "between_functions"])
def test_script_survives_the_death_of_its_worker(tmp_path: Path, code: str) -> None:
    """Killed in the middle: nothing of the first attempt is there, and the next worker runs the script once more."""
    url, mark = f"sqlite:///{tmp_path}/well.db", tmp_path / "mark"
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
        import sys, time
        from pathlib import Path
        from stepwell import Stepwell, step
        from stepwell.flow import define, script
        mark = Path({str(mark)!r})

        @step(name="sandbox.mark")
        def note() -> None:
            if not mark.exists():
                mark.touch()
                time.sleep(600)

        CODE = {code!r}
        if __name__ == "__main__":
            with Stepwell({url!r}, lease_seconds=1) as well:
                print(well.start(define("survivor", script(CODE)), {{}}, execution_id="one").result(60), flush=True)
        """)
    )
    first = subprocess.Popen([sys.executable, str(program)])
    until(mark.exists)
    first.kill()
    first.wait()
    with Stepwell(url, worker=False) as well:
        assert well.state.workspace("default").get("a") is None
    second = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=WAIT, check=True)
    assert float(second.stdout) == 1
    with Stepwell(url, worker=False) as well:
        assert well.run("one").status() is Status.COMPLETED
        assert well.state.workspace("default").all() == {"a": 1, "b": 1}


def test_process_ends_with_its_worker(tmp_path: Path) -> None:
    code = "from stepwell import Stepwell\nfrom stepwell.flow import define, script\n"
    code += "well = Stepwell('memory://')\nprint(well.start(define('x', script('return 1')), {}).result(60), flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == "1"
        children = _children_of(worker.pid)
        assert children
        worker.kill()
    until(lambda: not any(_is_alive(pid) for pid in children))


def _children_of(pid: int) -> list[int]:
    return [int(each) for path in Path(f"/proc/{pid}/task").iterdir() for each in (path / "children").read_text().split()]


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


CONFINED = """
import os, socket, subprocess, sys, ctypes, threading, signal, json
attempts = {
    "open": lambda: open("/etc/passwd"),
    "write": lambda: os.open("/tmp/stepwell-escape", os.O_CREAT | os.O_WRONLY),
    "socket": lambda: socket.socket(),
    "unix socket": lambda: socket.socketpair(),
    "fork": lambda: os.fork(),
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "spawn": lambda: subprocess.run(["/bin/true"]),
    "thread": lambda: threading.Thread(target=print).start(),
    "kill": lambda: os.kill(os.getppid(), 0),
    "listdir": lambda: os.listdir("/"),
    "pipe": lambda: os.pipe(),
    "dup": lambda: os.dup(0),
    "chdir": lambda: os.chdir("/"),
    "unlink": lambda: os.unlink("/tmp/stepwell-none"),
    "ptrace": lambda: ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) and (_ for _ in ()).throw(PermissionError()),
    "setrlimit": lambda: __import__("resource").setrlimit(__import__("resource").RLIMIT_NOFILE, (64, 64)),
    "memory": lambda: bytearray(512 * 1024 * 1024),
}
list(attempts)
import resource
libc = ctypes.CDLL(None)
from stepwell.script.confinement import confine
confine(96 * 1024 * 1024, 60)
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "done"
    except (OSError, MemoryError, RuntimeError, ValueError) as error:
        found[name] = type(error).__name__
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the filter of system calls is Linux's")
def test_kernel_refuses_files_sockets_and_processes_to_a_confined_process() -> None:
    done = subprocess.run([sys.executable, "-c", CONFINED], capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 0, done.stderr
    assert {name for name, said in json.loads(done.stdout).items() if said == "done"} == set()


def test_environment_of_a_worker_is_not_that_of_its_scripts(well: Stepwell) -> None:
    outcome(well, "return 1")
    for pid in processes():
        names = {each.split(b"=")[0] for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if each}
        assert names <= {b"PYTHONPATH", b"LC_CTYPE"}
