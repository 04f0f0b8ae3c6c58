"""The command line: running workflows, and looking at runs."""

from __future__ import annotations

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest
from click.shell_completion import ShellComplete
from tests.support.command_line import Shell, shell

from stepwell import Receipt, Status, StepOutput, Stepwell
from stepwell.cli.main import cli
from stepwell.cli.output import Terminal
from stepwell.cli.run_view import follow
from stepwell.flow import function

__all__ = ["shell"]


def test_run_gives_the_result_on_standard_output_and_progress_on_standard_error(shell: Shell):
    done = shell.checkout("a")
    assert done.code == 0, done.err
    assert done.json == {"paid": {"paid": 5}, "reserved": "reserved lamp"}
    assert "created a of checkout" in done.err
    assert "charge  COMPLETED" in done.err
    assert done.err.rstrip().endswith("run  COMPLETED")


def test_quiet_run_writes_only_its_result(shell: Shell):
    done = shell("run", "shop.py:approval", "-q", "--id", "a", "-i", '"ada"', "--timeout", "0")
    assert done.code == 124
    assert done.out == ""
    assert done.err.count("\n") == 1


def test_run_as_json_is_one_value(shell: Shell):
    done = shell("--json", "run", "shop.py:checkout", "--id", "a", "-i", '{"item": "lamp", "cents": 5}')
    told = done.json
    assert (told["execution_id"], told["status"], told["output"]["paid"]) == ("a", "COMPLETED", {"paid": 5})
    assert done.err == ""


@pytest.mark.parametrize("given", ["@order.json", "-"])
def test_input_comes_from_a_file_or_from_standard_input(shell: Shell, given: str):
    text = '{"item": "chair", "cents": 9}'
    shell.write("order.json", text)
    done = shell("run", "shop.py:checkout", "--input", given, input=text)
    assert done.json["reserved"] == "reserved chair"


def test_null_that_is_given_is_not_the_default_of_a_parameter(shell: Shell):
    shell.write("flows.py", "from stepwell import workflow\n\n@workflow\ndef nightly(day: str | None = 'today'):\n    return day\n")
    assert shell("run", "flows.py", "--input", "null").json is None
    assert shell("run", "flows.py").json == "today"
    refused = shell("enqueue", "flows.py", "--input", "null")
    assert (refused.code, "leave it out" in refused.err) == (5, True)
    assert shell("enqueue", "flows.py").code == 0


def test_failed_run_says_why_and_ends_with_one(shell: Shell):
    done = shell.checkout("a", cents=-5)
    assert done.code == 1
    assert done.out == ""
    assert "charge attempt 1 failed: ValueError: -5 is negative" in done.err
    assert "error: execution 'a' failed: StepFailed" in done.err
    assert "Traceback" not in done.err


def test_failed_run_as_json_has_its_error_once(shell: Shell):
    done = shell("run", "shop.py:checkout", "--json", "-i", '{"item": "lamp", "cents": -5}')
    assert done.code == 1
    assert done.json["status"] == "FAILED"
    assert done.json["error"]["kind"] == "StepFailed"
    assert '"error"' not in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nothing",), 3, "there is no workflow 'nothing' here"),
        (("nothing.py",), 3, "there is no file 'nothing.py'"),
        (("nothing.yaml",), 3, "there is no file 'nothing.yaml'"),
        (("no_such_module:flow",), 3, "there is no module 'no_such_module'"),
        (("shop.py:nothing",), 3, "those of 'shop' are: approval, checkout"),
        (("shop.py",), 5, "has several workflows (approval, checkout)"),
        (("shop.py:checkout", "-i", "{nonsense"), 5, "a value is JSON"),
        (("shop.py:checkout", "-i", "@nothing.json"), 3, "there is no file 'nothing.json'"),
        (("shop.py:checkout", "-i", '{"item": "lamp"}'), 5, "missing ['cents']"),
        (("shop.py:checkout", "-i", '{"item": "lamp", "cents": NaN}'), 5, "cannot be read"),
        (("shop.py:checkout", "--timeout", "soon"), 2, "--timeout"),
        (("shop.py:checkout", "--timeout", "-1"), 2, "from 0 seconds to 100 years"),
        ((), 2, "Missing argument 'FILE|NAME'; see stepwell run --help"),
        (("broken.py",), 5, "'broken.py' cannot be imported: ZeroDivisionError: division by zero"),
        (("unreadable.py",), 5, "'unreadable.py' cannot be imported: SyntaxError"),
        (("leaving.py",), 5, "'leaving.py' cannot be imported: SystemExit: 3"),
        (("empty.py",), 3, "has no workflow"),
    ],
)
def test_run_of_what_cannot_be_run_says_so_on_one_line(shell: Shell, arguments: tuple[str, ...], code: int, says: str):
    shell.write("broken.py", "x = 1\nx / 0\n")
    shell.write("unreadable.py", "def f(:\n")
    shell.write("leaving.py", "import sys\nsys.exit(3)\n")
    shell.write("empty.py", "")
    done = shell("run", *arguments)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_fault_in_a_module_is_told_with_its_line(shell: Shell):
    shell.write("broken.py", "x = 1\nx / 0\n")
    assert "broken.py:2)" in shell("run", "broken.py").err


def test_a_file_with_one_workflow_needs_no_name_and_a_module_is_found_in_the_folder(shell: Shell):
    shell.write(
        "single.py", "from shop import charge\nfrom stepwell import workflow\n@workflow\nasync def only(x: int): return x\n"
    )
    assert shell("run", "single.py", "-i", "7").json == 7
    assert shell("run", "single:only", "-i", "8").json == 8
    assert shell("run", "only", "-m", "single", "-i", "9").json == 9


def test_started_run_waits_for_a_worker_and_is_followed_by_its_id(shell: Shell):
    begun = shell("start", "shop.py:checkout", "--id", "a", "-i", '{"item": "lamp", "cents": 5}')
    assert (begun.code, begun.out) == (0, "a\n")
    assert "stepwell watch a" in begun.err
    late = shell("watch", "a", "--timeout", "0")
    assert (late.code, late.out) == (124, "")
    assert "stepwell watch a" in late.err
    again = shell("start", "shop.py:checkout", "--json", "--id", "a", "-i", '{"item": "lamp", "cents": 5}')
    assert again.json == {"execution_id": "a", "status": "PENDING"}
    with Stepwell(shell.url):
        watched = shell("watch", "a", "--json")
    events = [line["event"] for line in watched.lines]
    assert events[0] == "created"
    assert events[-1] == "end"
    assert events.count("step") == 2
    assert watched.lines[-1]["output"]["paid"] == {"paid": 5}


def test_start_in_memory_is_refused_since_nobody_could_run_it(shell: Shell):
    done = shell("start", "shop.py:checkout", "--url", "memory://")
    assert done.code == 5
    assert "ends with this command" in done.err


def test_watch_of_a_run_that_failed_ends_as_the_run_did(shell: Shell):
    shell.checkout("a", cents=-1)
    assert shell("watch", "a").code == 1
    assert shell("watch", "nothing").code == 3


def test_signal_reaches_a_run_and_its_value_is_checked(shell: Shell):
    shell("start", "shop.py:approval", "--id", "a", "-i", '"ada"')
    assert shell("signal", "a", "approve", "yes").code == 5
    assert shell("signal", "nothing", "approve").code == 3
    sent = shell("signal", "a", "approve", '"yes"', "--json")
    assert sent.json == {"execution_id": "a", "signal": "approve"}
    assert shell("run", "shop.py:approval", "--id", "a").json == "ada: yes"
    late = shell("signal", "a", "approve")
    assert late.code == 4
    assert "has ended as COMPLETED" in late.err


def test_part_of_a_run_is_cancelled(shell: Shell):
    shell.write(
        "parts.yaml", "name: parts\ndo:\n  - {scope: [{signal: go, name: held}], name: left}\n  - {signal: on, name: after}\n"
    )
    assert shell("start", "parts.yaml", "--id", "p").code == 0
    assert shell("cancel", "p", "--scope", "right").code == 3
    assert shell("cancel", "p", "--scope", "left", "--step", "held").code == 2
    assert shell("cancel", "p", "--step", "after", "--json").json == {"execution_id": "p", "cancel": "asked", "step": "after"}


def test_cancelled_run_ends_with_seven(shell: Shell):
    shell("start", "shop.py:approval", "--id", "a", "-i", '"ada"')
    assert shell("cancel", "a", "--json").json == {"execution_id": "a", "cancel": "asked"}
    assert shell("run", "shop.py:approval", "--id", "a").code == 7
    assert shell("cancel", "a").code == 4
    assert shell("cancel", "nothing").code == 3


def test_failed_run_is_retried_and_others_are_not(shell: Shell):
    shell.checkout("a", cents=-5)
    assert shell("retry", "a", "--json").json == {"execution_id": "a", "status": "PENDING"}
    shell.checkout("b")
    refused = shell("retry", "b")
    assert refused.code == 4
    assert "only one that failed can be tried again" in refused.err
    assert shell("retry", "nothing").code == 3


def test_fork_begins_with_the_state_at_a_revision(shell: Shell):
    shell.checkout("a")
    told = shell("fork", "a", "b", "--at", "1", "--json").json
    assert (told["execution_id"], told["parent_id"]) == ("b", "a")
    assert shell("show", "b", "--json").json["parent_id"] == "a"
    assert shell("fork", "a", "b").code == 4
    assert shell("fork", "a", "c", "--at", "999").code == 3
    assert shell("fork", "a", "d", "--at", "-1").code == 2
    assert "give NAME=JSON" in shell("fork", "a", "d", "--variable", "limit").err


def test_verify_walks_the_receipts(shell: Shell):
    shell.checkout("a")
    done = shell("verify", "a")
    assert done.code == 0
    assert done.out.startswith("ok  4 receipts, head ")
    told = shell("verify", "a", "--json").json
    assert (told["ok"], told["receipts"], told["problems"]) == (True, 4, [])
    assert shell("verify", "nothing").code == 3


def test_verify_of_an_edited_history_ends_with_one_and_says_where(shell: Shell):
    """T20 for people: one byte of a stored commit was changed."""
    shell.checkout("a")
    with Stepwell(shell.url, worker=False) as well:
        body = well.receipts("a")[1].body
    database = apsw.Connection(str(shell.folder / "well.db"))
    edited = body.replace(b"COMPLETED", b"COMPLETEX", 1)
    assert edited != body
    database.execute("UPDATE commits SET body = ?2 WHERE body = ?1", (body, edited))
    database.close()
    done = shell("verify", "a")
    assert done.code == 1
    assert done.out == "BROKEN  the mutations of revision 1 do not match their digest\n"
    assert shell("verify", "a", "--json").json["ok"] is False
    assert shell("show", "a").code == 6


def test_list_shows_the_newest_first_and_filters(shell: Shell):
    shell.checkout("a")
    shell.checkout("b", cents=-1)
    rows = [line.split("\t") for line in shell("list").out.splitlines()]
    assert [row[:3] for row in rows] == [["b", "checkout", "FAILED"], ["a", "checkout", "COMPLETED"]]
    assert [each["execution_id"] for each in shell("list", "--json", "--status", "failed").lines] == ["b"]
    none = shell("list", "--workflow", "other")
    assert (none.out, none.err) == ("", "no run matches; see all with: stepwell list\n")
    assert len(shell("list", "-n", "1").out.splitlines()) == 1
    assert shell("list", "--status", "nonsense").code == 2
    assert shell("list", "-n", "0").code == 2


FLAKY = """
from stepwell import Retry, step, workflow

@step(retry=Retry(attempts=2, first_seconds=0.001))
def charge():
    raise ConnectionError("the bank is away")

@workflow
def flaky():
    charge()
"""


def test_show_has_state_timeline_and_receipts(shell: Shell):
    shell.checkout("a")
    done = shell("show", "a")
    assert done.out.startswith("a  COMPLETED\n")
    for part in ("input      ", 'reserved = "reserved lamp"', "Steps", "Timeline", "  reserve  "):
        assert part in done.out
    assert "Receipts" not in done.out
    assert "Receipts: the newest 4 of 4" in shell("show", "a", "--receipts", "9").out
    told = shell("show", "a", "--json").json
    assert told["status"] == Status.COMPLETED
    assert told["trigger"] == {"cents": 5, "item": "lamp"}
    assert set(told["steps"]) == {"reserve", "charge"}
    assert [each["revision"] for each in told["receipts"]] == [0, 1, 2, 3]
    assert {"created", "step", "status", "result", "variable"} <= {each["event"] for each in told["timeline"]}
    assert shell("show", "a", "--at", "0", "--json").json["steps"] == {}
    assert shell("show", "nothing").code == 3


def test_show_lists_failed_attempts(shell: Shell):
    shell.write("flaky.py", FLAKY)
    assert shell("run", "flaky.py", "--id", "a").code != 0
    shown = shell("show", "a")
    assert shown.out.count("charge attempt 1: ConnectionError: the bank is away") == 1
    assert shown.out.count("charge attempt 2: ConnectionError: the bank is away") == 1
    [record] = shell("show", "a", "--json").json["steps"].values()
    assert (record["status"], record["output"], len(record["attempts"])) == ("FAILED", None, 2)


def test_show_says_what_a_run_waits_for(shell: Shell):
    done = shell("run", "shop.py:approval", "--id", "a", "-i", '"ada"', "--timeout", "0.5")
    assert done.code == 124
    assert done.err.count("takes signal approve: stepwell signal a approve JSON") == 1
    assert (done.err.count("created a"), done.err.count("waits for signal approve")) == (1, 1), "everything is said once"
    shown = shell("show", "a").out
    assert "waits for  signal approve" in shown
    assert "takes      signal approve: stepwell signal a approve JSON" in shown
    assert shell("show", "a", "--json").json["progress"]["offers"][0]["name"] == "approve"


class EndsMeanwhile(Stepwell):
    """A well whose run ends right after somebody has read its receipts."""

    is_running = True

    def receipts(self, execution_id: str, *, after: int = -1, limit: int | None = None) -> list[Receipt]:
        found = super().receipts(execution_id, after=after, limit=limit)
        if self.is_running:
            self.is_running = False
            with self.transaction(execution_id) as tx:
                tx.set_status("RUNNING")
                tx.record_step(StepOutput("last", "last", "COMPLETED", 1, datetime.now(UTC), 5))
                tx.set_status("COMPLETED")
        return found


def test_follower_sees_the_last_events_of_a_run_that_ends_while_it_looks(tmp_path: Path):
    with EndsMeanwhile(f"sqlite:///{tmp_path / 'well.db'}", worker=False) as well:
        well.create("run")
        events = list(follow(well, "run", timeout=60))
    assert "last" in str(events)
    assert "COMPLETED" in str(events[-1])


MENDING = """
from pathlib import Path
from stepwell import step, workflow

@step
def load(name: str) -> str:
    return Path(name).read_text()

@workflow
def importing(name: str) -> str:
    return load(name)
"""


def test_retry_here_runs_the_failed_run_in_this_process(shell: Shell):
    shell.write("importing.py", MENDING)
    assert shell("run", "importing.py", "--id", "a", "-i", '"data.txt"').code == 1
    shell.write("data.txt", "7 rows")
    assert shell("-m", "importing.py", "retry", "a", "--here").json == "7 rows"
    assert shell("show", "a", "--json").json["status"] == Status.COMPLETED


def test_retry_here_without_the_workflow_says_what_is_missing_and_changes_nothing(shell: Shell):
    shell.write("importing.py", MENDING)
    assert shell("run", "importing.py", "--id", "a", "-i", '"data.txt"').code == 1
    function.unregister(*function.registered_functions())
    done = shell("retry", "a", "--here")
    assert (done.code, "importing" in done.err) == (3, True)
    assert shell("show", "a", "--json").json["status"] == Status.FAILED


def test_signals_that_no_wait_has_taken_are_shown(shell: Shell):
    assert shell("run", "shop.py:approval", "--id", "a", "-i", '"ada"', "--timeout", "0").code == 124
    assert shell("signal", "a", "nobody_asks", "1").code == 0
    assert "not taken  signal nobody_asks: no wait has asked for it yet" in shell("show", "a").out
    with Stepwell(shell.url, worker=False) as well:
        assert "nobody_asks" in well.run("a").progress().untaken


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("stepwell show ", {"first", "second"}),
        ("stepwell retry fi", {"first"}),
        ("stepwell list --workflow ch", {"checkout"}),
        ("stepwell queue pause ", {"default"}),
        ("stepwell show nothing", set()),
        ("stepwell draw --run s", {"second"}),
        ("stepwell check --run ", {"first", "second"}),
        ("stepwell usage --workflow ch", {"checkout"}),
        ("stepwell queue list --workflow ch", {"checkout"}),
        ("stepwell enqueue x --queue ", {"default"}),
        ("stepwell queue drain def", {"default"}),
        ("stepwell retention show fir", {"first"}),
    ],
)
def test_ids_and_names_are_completed(shell: Shell, monkeypatch: pytest.MonkeyPatch, words: str, completed: set[str]):
    shell.checkout("first")
    shell.checkout("second")
    shell("enqueue", "shop.py:checkout", "-i", '{"item": "lamp", "cents": 5}')
    *typed, last = words.split(" ")
    monkeypatch.setenv("STEPWELL_URL", shell.url)
    found = ShellComplete(cli, {}, "stepwell", "_STEPWELL_COMPLETE").get_completions(typed[1:], last)
    assert {each.value for each in found} == completed


@pytest.mark.parametrize("command", ["run", "start", "enqueue", "schedule put nightly"])
def test_workflow_to_start_is_completed_by_name_and_by_file(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
):
    shell.checkout("first")
    monkeypatch.setenv("STEPWELL_URL", shell.url)
    monkeypatch.chdir(tmp_path)
    for name in ("chairs.py", "chess.txt"):
        Path(name).touch()
    found = ShellComplete(cli, {}, "stepwell", "_STEPWELL_COMPLETE").get_completions(command.split(), "ch")
    # bash forgets what comes before the request for files
    assert [(each.value, each.type) for each in found] == [("ch", "file"), ("checkout", "plain"), ("chairs.py", "plain")]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("worker", "file"),
        ("serve", "file"),
        ("check", "file"),
        ("workflow put", "file"),
        ("list -m", "file"),
        ("state import", "file"),
        ("dev", "dir"),
        ("backup create", "dir"),
    ],
)
def test_files_and_folders_are_completed_by_the_shell(command: str, kind: str):
    found = ShellComplete(cli, {}, "stepwell", "_STEPWELL_COMPLETE").get_completions(command.split(), "sh")
    assert [(each.value, each.type) for each in found] == [("sh", kind)]


def test_completion_is_silent_where_there_is_no_store(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPWELL_URL", shell.url)
    assert ShellComplete(cli, {}, "stepwell", "_STEPWELL_COMPLETE").get_completions(["show"], "") == []
    assert list(shell.folder.glob("*.db")) == []


class Screen(io.StringIO):
    """A terminal of some width."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [30, 48, 60, 200])
def test_table_fits_into_the_terminal_and_keeps_ids_whole(monkeypatch: pytest.MonkeyPatch, width: int):
    monkeypatch.setenv("COLUMNS", str(width))
    out = Screen()
    terminal = Terminal(out, Screen(), {"NO_COLOR": "1"}, is_json=False, is_quiet=False)
    run_id = "01a1f4613ca8979676c32fd"
    terminal.table(
        ["ID", "WORKFLOW", "STATUS", "UPDATED"], [[run_id, "a workflow with a long name", "COMPLETED", "2026-11-19 15:16"]]
    )
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert lines[1].startswith(run_id)


def test_table_of_runs_shows_status_and_time_whole_in_eighty_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = Screen()
    terminal = Terminal(out, Screen(), {}, is_json=False, is_quiet=False)
    run_id, at = "01a1f4ed699cd8c8cf0b04cf655ed9a8", "2026-11-19 17:49:24"
    headings = ["ID", "WORKFLOW", "STATUS", "UPDATED", "WORKSPACE", "REVISION"]
    terminal.table(headings, [[run_id, "nightly_import", "COMPLETED", at, "default", "13"]], status_column=2)
    row = out.getvalue().splitlines()[1]
    assert run_id in row
    assert at in row
    assert "nightly_import" in row
    assert "\x1b[32mCOMPLETED\x1b[0m" in row


def test_table_keeps_every_id_whole_and_leaves_out_what_does_not_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = Screen()
    terminal = Terminal(out, Screen(), {"NO_COLOR": "1"}, is_json=False, is_quiet=False)
    ids = ["01a1f4ed699cd8c8cf0b04cf655ed9a8", "01a1f4ed699cd8c8cf0b04cf655ed9a9"]
    terminal.table(["ITEM", "STATUS", "RUN", "ERROR"], [[ids[0], "FAILED", ids[1], "no such table"]])
    headings, row = out.getvalue().splitlines()
    assert headings.split() == ["ITEM", "STATUS", "RUN"]
    assert row.split() == [ids[0], "FAILED", ids[1]]


def test_what_steps_print_stands_above_the_status_line():
    err = Screen()
    terminal = Terminal(Screen(), err, {"NO_COLOR": "1", "TERM": "xterm"}, is_json=False, is_quiet=False)
    terminal.show_status("50 %")
    with terminal.prints_beside():
        print("charging", end="", flush=True)
        terminal.show_status("60 %")
        print("charged", file=sys.stderr)
        terminal.note("done")
    assert err.getvalue() == "\r\x1b[K50 %\r\x1b[Kcharging\n\r\x1b[K60 %\r\x1b[Kcharged\ndone\n"


def test_lines_of_steps_stay_whole_beside_each_other_and_beside_events():
    err = Screen()
    terminal = Terminal(Screen(), err, {"NO_COLOR": "1", "TERM": "xterm"}, is_json=False, is_quiet=False)
    with terminal.prints_beside(), ThreadPoolExecutor(1) as other:
        print("item", 1, end=" ")
        other.submit(print, "item", 2).result()
        terminal.note("one COMPLETED")
        print("is done")
        print("begun", end="", flush=True)
        terminal.note("two COMPLETED")
        print("the rest", end="")
    assert err.getvalue() == "item 2\none COMPLETED\nitem 1 is done\nbegun\ntwo COMPLETED\nthe rest\n"


def test_notes_inside_the_block_go_to_the_terminal_itself():
    out, err = Screen(), Screen()
    terminal = Terminal(out, err, {"NO_COLOR": "1"}, is_json=False, is_quiet=False)
    with terminal.prints_beside():
        inner = Terminal.standard()
    assert (inner.out, inner.err) == (out, err)
