"""The command line as a program of its own: signals, exit codes, terminals and what it imports."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_line import Shell, program, shell

from stepwell import Status, Stepwell
from stepwell.cli.commands import runs
from stepwell.cli.main import COMMANDS, Group, cli
from stepwell.flow import call, define
from stepwell.flow.function import registered_alone

__all__ = ["shell"]

GATE = """
import asyncio
from pathlib import Path

from stepwell import step, workflow


@step
async def first() -> str:
    with Path("effects").open("a") as file:
        file.write("first\\n")
    print("inside", flush=True)
    while not Path("open").exists():
        await asyncio.sleep(0.01)
    return "one"


@step
async def second() -> str:
    return "two"


@workflow
async def gate() -> list:
    return [await first(), await second()]
"""
"""A workflow whose first step says when it is inside, and stays there until a file is made."""


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The end of a program: its exit code and what it wrote that was not read yet."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def read_until(stream, words: str) -> str:
    """Read lines until one has these words."""
    seen = ""
    for line in stream:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"no {words!r} in {seen!r}")


@pytest.fixture
def gate(shell: Shell) -> Shell:
    """A shell with the gated workflow, and a run of it that waits for a worker."""
    shell.write("gate.py", GATE)
    assert shell("start", "gate.py", "--id", "g").code == 0
    return shell


def test_worker_that_is_told_to_stop_finishes_its_step_and_gives_the_run_back(gate: Shell):
    """T42: SIGTERM; the step under way is recorded once, and the next worker goes on at once with what is left."""
    with program(gate, "worker", "gate.py") as worker:
        read_until(worker.stderr, "worker is ready")
        read_until(worker.stdout, "inside")
        worker.send_signal(signal.SIGTERM)
        read_until(worker.stderr, "stopping")
        (gate.folder / "open").touch()
        code, _, err = finish(worker)
    assert (code, "handed back" in err) == (0, True)
    with Stepwell(gate.url, worker=False) as well:
        assert "first" in well.load("g").steps
        assert well.run("g").status() != Status.RUNNING, "nobody holds it any more"
    assert gate("run", "gate.py", "--id", "g").json == ["one", "two"]
    assert (gate.folder / "effects").read_text() == "first\n"


def test_worker_that_is_told_twice_leaves_its_step_and_gives_the_run_back(gate: Shell):
    """T42: nobody waits for the step, nor for the lease to end."""
    with program(gate, "worker", "gate.py") as worker:
        read_until(worker.stderr, "worker is ready")
        read_until(worker.stdout, "inside")
        worker.send_signal(signal.SIGTERM)
        read_until(worker.stderr, "stopping")
        worker.send_signal(signal.SIGTERM)
        code = finish(worker)[0]
    assert code in (0, 143)
    assert gate("show", "g", "--json").json["steps"] == {}
    (gate.folder / "open").touch()
    # A lease takes 30 seconds to end; only a machine too busy to give it back in time has to wait for that.
    assert gate("run", "gate.py", "--id", "g", "--timeout", "25" if code == 0 else "90").json == ["one", "two"]


def test_worker_says_as_json_when_it_is_ready(gate: Shell):
    with program(gate, "--json", "worker", "gate.py", "-q") as worker:
        seen = read_until(worker.stdout, "inside")  # the step may be there before the worker says that it is ready
        seen += "" if "ready" in seen else read_until(worker.stdout, "ready")
        assert '"event":"ready"' in seen
        (gate.folder / "open").touch()
        worker.send_signal(signal.SIGINT)
        code, _, err = finish(worker)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("empty.py",), 5), (("nothing",), 3), (("gate.py", "-c", "0"), 2)])
def test_worker_without_workflows_does_not_start(gate: Shell, arguments: tuple[str, ...], code: int):
    gate.write("empty.py", "")
    with registered_alone():
        done = gate("worker", *arguments)
    assert done.code == code
    assert done.err.count("\n") == 1


def test_interrupted_run_is_kept_and_says_how_it_goes_on(gate: Shell):
    with program(gate, "run", "gate.py", "--id", "g") as run:
        read_until(run.stderr, "inside")
        run.send_signal(signal.SIGINT)
        said = read_until(run.stderr, "again to end at once")
        (gate.folder / "open").touch()
        code, out, _ = finish(run)
    assert (code, out) == (130, "")
    assert "stepwell run gate.py --id g" in said
    assert gate("run", "gate.py", "--id", "g").json == ["one", "two"]
    assert (gate.folder / "effects").read_text() == "first\n"


@pytest.mark.parametrize(("options", "is_told"), [(("--id", "a"), True), ((), False)])
def test_run_interrupted_while_it_is_begun_says_how_it_goes_on_if_it_has_a_name(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], is_told: bool
):
    """Its worker is at work by then, and may be inside of a step."""

    def begin(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_begin", begin)
    monkeypatch.setattr(runs, "_end_when_interrupted", lambda: None)  # this process is to end as ever
    done = shell("run", "shop.py:approval", *options, "-i", '"ada"')
    assert (done.code, "stepwell run shop.py:approval --id a" in done.err) == (130, is_told)


def test_run_interrupted_twice_ends_at_once(gate: Shell):
    with program(gate, "run", "gate.py", "--id", "g") as run:
        read_until(run.stderr, "inside")
        run.send_signal(signal.SIGINT)
        read_until(run.stderr, "again to end at once")
        run.send_signal(signal.SIGINT)
        assert finish(run)[0] == 130


def test_interrupted_watch_says_that_the_run_goes_on(gate: Shell):
    with program(gate, "watch", "g") as watch:
        read_until(watch.stderr, "created g")
        watch.send_signal(signal.SIGINT)
        code, out, err = finish(watch)
    assert (code, out) == (130, "")
    assert "stepwell watch g" in err


def test_terminated_run_gives_its_lease_back(gate: Shell):
    """T42: SIGTERM is no kill: the next worker need not wait for the lease to end."""
    with program(gate, "run", "gate.py", "--id", "g") as run:
        read_until(run.stderr, "inside")
        run.send_signal(signal.SIGTERM)
        (gate.folder / "open").touch()
        assert finish(run)[0] == 143
    assert gate("run", "gate.py", "--id", "g", "--timeout", "25").json == ["one", "two"]


def on_terminal(shell: Shell, *arguments: str, **environ: str) -> str:
    """Return the output of a command on a terminal, standard output and standard error together."""
    ours, theirs = pty.openpty()
    surroundings = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    surroundings |= {"STEPWELL_URL": shell.url, "TERM": "xterm", "PYTHONUTF8": "1", "COLUMNS": "100"} | environ
    with program(shell, *arguments, stdin=theirs, stdout=theirs, stderr=theirs, env=surroundings) as child:
        os.close(theirs)
        seen = b""
        while chunk := _chunk(ours):
            seen += chunk
        child.wait(60)
    os.close(ours)
    return seen.decode()


def _chunk(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that the other side is closed
        return b""


def test_terminal_gets_colour_and_a_table_and_a_pipe_gets_neither(shell: Shell):
    shell.checkout("a")
    seen = on_terminal(shell, "list")
    assert "ID" in seen
    assert "\x1b[32mCOMPLETED" in seen
    plain = on_terminal(shell, "list", NO_COLOR="1")
    assert "ID" in plain
    assert "\x1b" not in plain
    assert "\x1b" not in on_terminal(shell, "list", TERM="dumb")
    assert "\x1b" not in shell("list").out


def test_progress_is_alive_on_a_terminal(shell: Shell):
    seen = on_terminal(shell, "run", "shop.py:approval", "--id", "a", "-i", '"ada"', "--timeout", "2")
    assert "\r\x1b[K" in seen
    assert "waits for signal approve" in seen
    assert "still" in seen.splitlines()[-1]


def test_hostile_text_cannot_reach_the_terminal(shell: Shell):
    """An id, a workflow's name, a key, a value and an error with control characters, none of which is obeyed."""
    evil = "x\x1b]0;gone\x07\x9b31m\r\u202e\u2066y"
    with Stepwell(shell.url, worker=False) as well:
        well.create(evil, context={evil: evil}, workflow=evil)
        with well.transaction(evil) as tx:
            tx.set_variable(evil, evil)
        well.state.custom(evil).set(evil, evil)
        well.definitions.put(define("evil", call(evil, {"a": evil})))
    scope = "custom/x%1B%5D0;gone%07%C2%9B31m%0D%E2%80%AE%E2%81%A6y"
    shown = (["list"], ["show", evil], ["show", evil, "--json"], ["workflow", "show", "evil"], ["draw", "evil"])
    piped = (["list", "--json"], ["watch", f"{evil}z"], ["run", evil], ["state", "list"], ["state", "get", scope, evil])
    seen_there = [on_terminal(shell, *arguments, NO_COLOR="1") for arguments in shown]
    for seen in (*seen_there, *(done.out + done.err for done in (shell(*arguments) for arguments in piped))):
        assert set("\x1b\x07\x9b\r\u202e\u2066") & set(seen.replace("\r\n", "\n")) == set(), seen
        assert "gone" in seen


def test_reader_that_goes_away_is_no_error_worth_a_word(shell: Shell):
    with Stepwell(shell.url, worker=False) as well:
        for number in range(300):
            well.create(f"{number:0500}")
    with program(shell, "list", "--json", "-n", "300") as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == ""


def test_installed_program_and_module_are_the_same(shell: Shell):
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'stepwell = "stepwell.cli.main:main"' in project
    with program(shell, "--version") as child:
        code, out, _ = finish(child)
    assert (code, out.split()[0]) == (0, "stepwell")


def test_shell_completes_commands_and_choices(shell: Shell):
    asked = {"stepwell w": {"watch", "worker", "workflow", "workspace"}, "stepwell list --status CANC": {"CANCELLED", "cancelled"}}
    for words, answers in asked.items():
        asking = {"_STEPWELL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        with program(shell, env=os.environ | asking) as child:
            _, out, _ = finish(child)
        found = {line.partition(",")[2] for line in out.split()}
        assert found
        assert found <= answers


def imported_by(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split("\n")[-2].split())


def test_help_imports_no_command_and_no_driver():
    """By listing modules, not by time: help and completion are asked for often."""
    loaded = imported_by(
        "from stepwell.cli.main import cli\ntry: cli.main(['--help'], prog_name='stepwell')\nexcept SystemExit: pass"
    )
    assert "click" in loaded
    heavy = {"apsw", "psycopg", "redis", "yaml", "cronsim", "starlette", "rich", "stepwell.stores.sqlite.store"}
    assert {name for name in loaded if name in heavy or name.startswith("stepwell.cli.commands.")} == set()


def test_library_does_not_import_the_command_line():
    assert {name for name in imported_by("import stepwell") if name.partition(".")[0] == "click" or ".cli" in name} == set()


def test_every_command_is_where_the_list_says_and_explains_itself(shell: Shell):
    for name, entry in COMMANDS.items():
        command = cli.get_command(cli.make_context("stepwell", ["--help"], resilient_parsing=True), name)
        assert command is not None
        assert (command.name, bool(command.help), entry.summary[-1]) == (name, True, ".")
        done = shell(name, "--help")
        assert (done.code, done.out.startswith(f"Usage: stepwell {name} ")) == (0, True)
        inner = command.entries if isinstance(command, Group) else {}
        assert all(shell(name, each, "--help").code == 0 for each in inner)


def test_steps_write_bytes_and_start_programs_with_the_streams_of_a_command(shell: Shell):
    shell.write(
        "noisy.py",
        "import subprocess, sys\n"
        "from stepwell import step, workflow\n\n"
        "@step\n"
        "def noise() -> int:\n"
        "    sys.stderr.buffer.write(b'bytes\\n')\n"
        "    sys.stderr.buffer.flush()\n"
        "    subprocess.run([sys.executable, '-c', 'print(\"from a program\")'], stdout=sys.stdout, check=True)\n"
        "    return 1\n\n"
        "@workflow\n"
        "def noisy() -> int:\n"
        "    return noise()\n",
    )
    with program(shell, "run", "noisy.py") as run:
        code, out, err = finish(run)
    assert (code, out) == (0, "1\n"), err
    assert "bytes\n" in err
    assert "from a program\n" in err
