"""The contests with rivals, without the rivals: the command line, the tables, the verdicts, and a contender that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.rivals.__main__ import arguments_of
from benchmarks.rivals.contest import CONTESTS, OURS, Contest, chosen, contenders_of
from benchmarks.rivals.player import Place
from benchmarks.rivals.seat import ContenderFailed, Seat
from benchmarks.rivals.target import RATIOS, VALUES, target_of
from benchmarks.rivals.verdict import lines

ROOT = Path(__file__).parents[2]
ALONE = Contest("steps", "alone", "sqlite", "steps/s", 20, 2)
LATENCY = Contest("queue", "latency", "sqlite", "ms", 20, 2)

_CONTENDER = """
class Doubling:
    def __init__(self, place):
        print("what a product prints is no answer")
        self.works = {"double": lambda size: [size * 2.0], "crash": lambda size: [1 / 0]}

    def close(self):
        import pathlib
        pathlib.Path(FILE).touch()
"""


def comparisons(contest: Contest, rounds: dict[str, list[list[float]]]) -> list[dict[str, object]]:
    return [line for line in map(json.loads, lines(contest, rounds)) if line["kind"] == "comparison"]


def test_a_name_stands_for_a_subject_a_work_a_contest_or_a_store():
    assert chosen([]) == list(CONTESTS)
    assert {contest.subject for contest in chosen(["steps"])} == {"steps"}
    assert {contest.store for contest in chosen(["steps.alone"])} == {"memory", "sqlite", "postgres"}
    assert [contest.name for contest in chosen(["queue.drain.redis"])] == ["queue.drain.redis"]
    assert {contest.store for contest in chosen(["redis"])} == {"redis"}


def test_a_name_that_nothing_has_is_refused_with_all_names(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        arguments_of(["--only", "step"])
    assert "no contest is called step; there are steps.alone.memory" in capsys.readouterr().err


def test_the_command_line_chooses_contests_and_size():
    arguments = arguments_of(["--quick", "--only", "steps.alone", "redis", "--contenders", "stepwell", "huey"])
    assert arguments.quick
    assert {contest.work for contest in arguments.contests} == {"alone", "enqueue", "bulk", "drain", "latency"}
    assert arguments.contenders == ["stepwell", "huey"]


def test_contests_have_names_of_their_own_and_we_take_part_in_all():
    assert len({contest.name for contest in CONTESTS}) == len(CONTESTS)
    for contest in CONTESTS:
        assert OURS in {contender.product for contender in contenders_of(contest.subject, contest.store)}


def test_every_target_is_of_a_contest_that_is_held_against_a_rival_that_takes_part():
    names = {contest.name: contest for contest in CONTESTS}
    for name, rival in RATIOS:
        taking_part = {contender.product for contender in contenders_of(names[name].subject, names[name].store)}
        assert rival in taking_part | {"oban"}, name
    for name in VALUES:
        assert name.rpartition(".")[0] in names


def test_every_contender_is_a_module_that_exists():
    for contest in CONTESTS:
        for contender in contenders_of(contest.subject, contest.store):
            source = (ROOT / contender.module.replace(".", "/")).with_suffix(".py").read_text()
            assert f"class {contender.kind}" in source


def test_we_are_set_beside_the_better_way_of_each_product():
    rounds = {"stepwell.async": [[5000.0]] * 3, "dbos.async": [[500.0]] * 3, "dbos.blocking": [[1000.0]] * 3}
    (comparison,) = comparisons(ALONE, rounds)
    assert comparison == {
        "kind": "comparison",
        "name": "steps.alone.sqlite",
        "contender": "stepwell.async",
        "value": 5000.0,
        "unit": "steps/s",
        "rival": "dbos.blocking",
        "rival_value": 1000.0,
        "ratio": 5.0,
        "target": "ratio >= 5",
        "met": True,
    }


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    """A slow moment of the machine falls on both sides of a round, and so on neither side of its ratio."""
    rounds = {"stepwell.async": [[100.0], [10.0], [300.0]], "dbos.async": [[50.0], [5.0], [20.0]]}
    (comparison,) = comparisons(ALONE, rounds)
    assert comparison["ratio"] == 2.0
    assert comparison["met"] is False


def test_of_times_the_shortest_is_the_better_and_the_worst_are_taken_over_all_rounds():
    ours = [[0.002, 0.004, 0.003], [0.003, 0.003, 0.050]]
    rounds = {"stepwell.async": ours, "huey.four": [[0.040], [0.040]], "huey.one": [[0.080], [0.080]]}
    middle, worst = comparisons(LATENCY, rounds)
    assert (middle["name"], middle["value"], middle["met"]) == ("queue.latency.sqlite.p50", 3.0, True)
    assert worst["name"] == "queue.latency.sqlite.p99"
    assert worst["met"] is False
    assert (middle["rival"], middle["ratio"]) == ("huey.four", 0.075)


@pytest.mark.parametrize(("value", "ratio", "met"), [(40_000, 0.1, True), (10_000, 0.7, True), (10_000, 0.69, False)])
def test_bulk_is_enough_by_its_rate_or_by_its_ratio(value: float, ratio: float, met: bool):
    target = target_of("queue.bulk.postgres", "pgqueuer", value, ratio)
    assert target is not None
    assert target.met is met


def test_beside_whom_nothing_was_promised_there_is_no_target():
    assert target_of("steps.alone.sqlite", "floor", 1, 1) is None


@pytest.fixture
def seat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "contender_of_the_test.py").write_text(_CONTENDER.replace("FILE", repr(str(tmp_path / "closed"))))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    taken = Seat("doubling", "contender_of_the_test", "Doubling", Place("memory", str(tmp_path)))
    yield taken
    taken.leave()


def test_a_contender_answers_turns_and_is_closed_when_it_leaves(seat: Seat, tmp_path: Path):
    assert seat.works == ["double", "crash"]
    assert seat.take_turn("double", 4) == [8.0]
    assert seat.take_turn("double", 5) == [10.0]
    seat.leave()
    assert (tmp_path / "closed").exists()


def test_a_contender_that_fails_is_told_from_one_that_answers(seat: Seat):
    with pytest.raises(ContenderFailed, match="doubling"):
        seat.take_turn("crash", 1)
    with pytest.raises(ContenderFailed):
        seat.take_turn("double", 1)


def test_the_tables_need_no_rival_to_be_installed():
    program = "import sys, benchmarks.rivals.__main__; print([m for m in ('dbos', 'langgraph', 'huey') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
