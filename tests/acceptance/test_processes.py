"""Processes: what one commits, the other sees; nothing is lost when one ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance.conftest import OpenWell

from stepwell import Conflict, Stepwell, StoreUnavailable

CHILD = """
import json, sys
from stepwell import Stepwell, StepwellError
well = Stepwell(sys.argv[1])
for line in sys.stdin:
    action, *arguments = json.loads(line)
    try:
        if action == "set":
            with well.transaction("run") as tx:
                tx.set_variable(*arguments)
            answer = tx.receipt.revision
        elif action == "load":
            state = well.load("run")
            answer = [state.revision, state.variables, state.state_digest]
        elif action == "verify":
            answer = [well.verify("run").ok, well.receipts("run")[-1].digest]
        elif action == "state":
            answer = well.state.globals.increment("n")
        elif action == "create":
            answer = well.create(*arguments).revision
        elif action == "delete":
            answer = well.delete(*arguments)
    except StepwellError as error:
        answer = error.code
    print(json.dumps(answer), flush=True)
"""


class Child:
    """Another process with the same well open."""

    def __init__(self, url: str, seed: str = "0") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )

    def do(self, *action: object) -> object:
        self.process.stdin.write(json.dumps(action) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0


def test_two_processes_see_each_others_commits(open_well: OpenWell, file_url: str) -> None:
    well = open_well(file_url)
    well.create("run")
    with Child(file_url) as child:
        for number in range(5):
            with well.transaction("run") as tx:
                tx.set_variable("parent", number)
            assert child.do("load")[1]["parent"] == number
            assert child.do("set", "child", number) == 2 * number + 2
            state = well.load("run")
            assert state.variables == {"parent": number, "child": number}
            assert child.do("load")[2] == state.state_digest
        assert child.do("verify") == [True, well.receipts("run")[-1].digest]
        assert well.verify("run").ok


def test_late_writer_of_another_process_gets_a_conflict(open_well: OpenWell, file_url: str) -> None:
    """T05."""
    well = open_well(file_url)
    well.create("run")
    with Child(file_url) as child:
        with pytest.raises(Conflict), well.transaction("run") as tx:  # noqa: PT012 - leaving the block is what raises
            tx.set_variable("by", "parent")
            assert child.do("set", "by", "child") == 1
        assert well.load("run").variables == {"by": "child"}
        with well.transaction("run") as tx:
            tx.set_variable("by", "parent")
        assert child.do("load")[1] == {"by": "parent"}


def test_counters_of_two_processes_add_up(open_well: OpenWell, file_url: str) -> None:
    well = open_well(file_url)
    with Child(file_url) as child:
        for number in range(10):
            assert well.state.globals.increment("n") == 2 * number + 1
            assert child.do("state") == 2 * number + 2


def test_id_taken_by_one_process_is_taken_for_all(open_well: OpenWell, file_url: str) -> None:
    well = open_well(file_url)
    with Child(file_url) as child:
        assert child.do("create", "theirs") == 0
        assert well.load("theirs").revision == 0
        well.create("run")
        assert child.do("create", "run") == "SW-202"
        assert child.do("delete", "run") is None
        with pytest.raises(Exception, match=r"SW-200"):
            well.load("run")
        assert child.do("create", "run") == "SW-202"


def test_state_at_hand_that_another_archived_away_is_loaded_anew(open_well: OpenWell, file_url: str, tmp_path: Path) -> None:
    one, two = open_well(file_url), open_well(file_url)
    one.create("run")
    for number in range(3):
        with two.transaction("run") as tx:
            tx.set_variable("n", number)
    two.archive("run", tmp_path / "proof")
    assert one.load("run").variables == {"n": 2}
    with two.transaction("run") as tx:
        tx.set_variable("n", 3)
    with one.transaction("run") as tx:
        tx.set_variable("m", 1)
    assert two.load("run").variables == {"n": 3, "m": 1}
    assert one.verify("run").ok


def test_everything_is_there_after_a_restart_with_the_same_digests(file_url: str) -> None:
    """T51: a new process, another hash seed."""
    with Stepwell(file_url) as well:
        well.create("run", context={"z": 1, "a": {"é": [1.0, None]}})
        with well.transaction("run") as tx:
            tx.set_variable("v", {"b": 1, "a": 2})
        digest, receipt = well.load("run").state_digest, tx.receipt.digest
    for seed in ("1", "2"):
        with Child(file_url, seed) as child:
            assert child.do("load")[2] == digest
            assert child.do("verify") == [True, receipt]


def test_well_opened_before_a_fork_refuses_to_work_in_the_child(file_url: str) -> None:
    """T12: a SQLite handle carried over a fork corrupts the file."""
    with Stepwell(file_url) as well:
        well.create("run")
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            answer = b"nothing"
            try:
                well.load("run")
                well.create("from the child")
            except StoreUnavailable as error:
                answer = str(error).encode()
            finally:
                os.write(writer, answer)
                os._exit(0)
        os.waitpid(pid, 0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            assert b"opened before a fork" in pipe.read()
        assert well.verify("run").ok
