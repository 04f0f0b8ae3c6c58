"""The examples and the demonstration with ``--engine temporal``: they say what they say without it, and leave the same states."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance.test_examples import EXAMPLES, NAMES, SAYS, without_store
from tests.support.temporal_server import EXAMPLES as PLACES
from tests.support.temporal_server import TemporalServer
from tests.temporal.comparison import check_same, comparable_state

from stepwell import Stepwell


def test_examples_and_demonstration_say_the_same_on_temporal(tmp_path: Path, temporal_server: TemporalServer) -> None:
    """Side by side, each in a namespace and with a store of its own: most of their time they wait."""
    flags = ["--engine", "temporal", "--address", temporal_server.address]
    assert len(NAMES) <= PLACES
    programs: dict[str, subprocess.Popen[str]] = {"demo": started([sys.executable, "-m", "stepwell", "demo", *flags], tmp_path)}
    for number, name in enumerate(NAMES):
        (folder := tmp_path / name).mkdir()
        program = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), "--namespace", f"example-{number}", *flags]
        programs[name] = started(program, folder)
    said = {name: (*program.communicate(timeout=240), program.returncode) for name, program in programs.items()}
    for name, (output, errors, code) in said.items():
        if code:  # an assertion would cut the output short
            pytest.fail(f"{name} ended with {code}:\n{output}\n{errors}")
        rest = output
        for line in SAYS.get(name, ["only the step that was killed was made again", "All 8 checks passed"]):
            _, found, rest = rest.partition(line)
            assert found, f"{name}: {line!r} is missing, or not in order, in:\n{output}"
    for name in NAMES:
        (folder := tmp_path / f"{name} on local workers").mkdir()
        local = started([sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")], folder)
        assert (local.communicate(timeout=240), local.returncode)[1] == 0, name
        with (
            Stepwell(f"sqlite:///{tmp_path}/{name}/.stepwell/well.db", worker=False) as well,
            Stepwell(f"sqlite:///{folder}/.stepwell/well.db", worker=False) as other,
        ):
            runs = well.executions.list()
            assert runs
            assert all(well.verify(each.execution_id).ok for each in runs)
            assert well.engines() == []
            for run, twin in zip(in_order(well), in_order(other), strict=True):
                check_same(comparable_state(other, twin, "local"), comparable_state(well, run, "temporal"), f"{name}, {run}")


def in_order(well: Stepwell) -> list[str]:
    """The ids of all runs, the first one first."""
    ids = [each.execution_id for each in well.executions.list()]
    return sorted(ids, key=lambda each: well.load(each).identity.started_at)


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(command, cwd=folder, env=without_store(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_demonstration_without_a_server_says_so(tmp_path: Path) -> None:
    """Several at once on one processor, where the SDK's thread is most often interrupted while it gives its answer."""
    command = [sys.executable, "-m", "stepwell", "demo", "--engine", "temporal", "--address", "127.0.0.1:1"]
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})
    try:
        programs = [started(command, tmp_path) for _ in range(4)]
    finally:
        os.sched_setaffinity(0, processors)
    for program in programs:
        output, errors = program.communicate(timeout=120)
        assert program.returncode == 1, f"ended with {program.returncode}:\n{output}\n{errors}"
        assert "no Temporal server answers at '127.0.0.1:1'" in errors
