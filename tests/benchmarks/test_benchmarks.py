"""The benchmarks run and say what they measured. Nothing here looks at how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from benchmarks.__main__ import all_measures, chosen, parts_of
from benchmarks.measurement import Measurement, at_least, at_most
from benchmarks.rounds import in_turns, median_ratio

FIELDS = {"kind", "name", "value", "unit", "raw", "raw_is", "ratio", "target", "met", "note"}


@pytest.fixture(scope="module")
def quick_run() -> list[dict[str, object]]:
    command = [sys.executable, "-m", "benchmarks", "--quick"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    assert "[1/" in done.stderr, "progress goes to stderr"
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_first_line_says_what_the_figures_were_taken_on(quick_run: list[dict[str, object]]):
    environment = quick_run[0]
    assert environment["kind"] == "environment"
    assert environment["quick"] is True
    assert {"python", "sqlite", "cpu_count", "fsync_ms"} <= environment.keys()


def test_every_other_line_is_a_measurement_with_all_fields(quick_run: list[dict[str, object]]):
    for line in quick_run[1:]:
        assert line.keys() == FIELDS
        assert line["kind"] == "measurement"
        assert isinstance(line["value"], float)
        assert line["met"] in (True, False, None)
        assert (line["target"] is None) == (line["met"] is None)
        assert (line["raw"] is None) == (line["ratio"] is None) == (line["raw_is"] == "")


def test_every_measure_gives_a_figure_under_its_name(quick_run: list[dict[str, object]]):
    names = [str(line["name"]) for line in quick_run[1:]]
    assert len(names) == len(set(names))
    for measure in all_measures():
        assert any(name == measure or name.startswith(f"{measure}.") for name in names), measure


def test_every_figure_that_has_to_be_reached_is_measured(quick_run: list[dict[str, object]]):
    judged = {str(line["name"]) for line in quick_run if line.get("target")}
    for prefix in (
        "datastore.get",
        "datastore.set",
        "importing.duration",
        "importing.modules.heavy",
        "locks.redis.contended",
        "locks.redis.hand_over",
        "locks.redis.pairs",
        "migration.beside_queue",
        "migration.values",
        "postgres.alone",
        "postgres.coroutines",
        "races.memory",
        "races.postgres",
        "races.redis",
        "races.sqlite",
        "redis.alone",
        "sqlite.alone",
        "sqlite.awaited",
        "sqlite.coroutines",
        "sqlite.load",
        "sqlite.revisions",
        "sqlite.state_size",
        "sqlite.threads",
        "sqlite.verify",
    ):
        assert any(name.startswith(prefix) for name in judged), prefix


def test_servers_and_locks_are_measured_on_every_store(quick_run: list[dict[str, object]]):
    names = {str(line["name"]) for line in quick_run[1:]}
    for store in ("postgres", "redis"):
        assert {f"{store}.{how}" for how in ("alone", "prepared", "awaited", "threads", "coroutines")} <= names
    for store in ("memory", "sqlite", "postgres", "redis"):
        assert {f"locks.{store}.{what}" for what in ("pairs", "contended", "hand_over")} <= names
    assert "locks.redis.scripts" in names


def test_every_race_of_a_run_had_one_winner(quick_run: list[dict[str, object]]):
    """T05: a count, not a time, so it holds however short the run is."""
    races = [line for line in quick_run[1:] if str(line["name"]).startswith("races.")]
    assert [line["met"] for line in races] == [True] * 4


def test_a_name_stands_for_its_group_or_for_one_measure():
    measures = all_measures()
    assert set(chosen(["memory"], measures)) == {"memory.alone", "memory.awaited"}
    assert set(chosen(["memory.alone"], measures)) == {"memory.alone"}
    assert chosen([], measures) == measures


def test_a_name_that_nothing_has_ends_the_run_with_a_message():
    with pytest.raises(SystemExit, match="no measure is called memo;"):
        chosen(["memo"], all_measures())


def test_works_take_turns_and_the_first_round_is_not_counted():
    seen: list[str] = []

    def work(name: str, figure: float) -> float:
        seen.append(name)
        return figure + len(seen)

    ours, raws = in_turns(2, lambda: work("a", 0), lambda: work("b", 0))
    assert seen == ["a", "b", "a", "b", "a", "b"]
    assert (ours, raws) == ([3, 5], [4, 6])


def test_ratio_is_the_median_of_the_rounds_own_ratios():
    assert median_ratio([1, 100, 3], [1, 10, 1]) == 3


def test_targets_are_met_at_their_very_edge():
    assert at_least("ratio", 0.7, 0.7).met
    assert not at_least("ratio", 0.69, 0.7).met
    assert at_most("value", 50, 50).met
    assert not at_most("value", 50.1, 50).met


def test_a_measurement_without_target_is_neither_met_nor_missed():
    line = json.loads(Measurement("x", 1.23456, "ms").line())
    assert line == {"kind": "measurement", "name": "x", "value": 1.235, "unit": "ms", "note": "", "raw_is": ""} | dict.fromkeys(
        ("raw", "ratio", "target", "met")
    )


def test_measures_of_a_subject_share_a_process_with_no_others() -> None:
    parts = parts_of(all_measures())
    assert [name for part in parts for name in part] == list(all_measures())
    subjects = [{name.partition(".")[0] for name in part} for part in parts]
    assert all(len(each) == 1 for each in subjects)
    assert len(set().union(*subjects)) == len(subjects)
