"""Engines that are chosen for a workflow, a queue or a workspace."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.acceptance.conftest import OpenWell

from stepwell import InvalidInput, NotFound, Stepwell, workflow
from stepwell.cli.main import cli
from stepwell.model.queue_item import workflow_and_engine
from stepwell.testing.store_access import parts_of

TEMPORAL = "temporal"


@workflow(name="choices.quiet")
async def quiet(n: int) -> int:
    return n


@pytest.fixture
def opened(open_well: OpenWell, url: str) -> Stepwell:
    """A well without a worker, through each face, on each store."""
    return open_well(url, worker=False)


def engine_of(well: Stepwell, **options: Any) -> str | None:
    return well.load(well.start(quiet, 1, **options).execution_id).identity.engine


def engine_of_item(well: Stepwell, **options: Any) -> str | None:
    item = well.enqueue(quiet, 1, **options)
    [found] = [each for each in well.queue.list() if each.item_id == item.item_id]
    return workflow_and_engine(found.workflow_id, TEMPORAL)[1]


def test_chosen_engine_holds_for_starts_and_items_of_its_workspace_only(opened: Stepwell) -> None:
    opened.workspaces.put("acme", tier="unlimited")
    opened.choose_engine(TEMPORAL, workspace="acme")
    assert [engine_of(opened, workspace=each) for each in ("acme", "default")] == [TEMPORAL, None]
    assert [engine_of_item(opened, workspace=each) for each in ("acme", "default")] == [TEMPORAL, None]


def test_chosen_engine_of_a_queue_holds_for_its_items_and_ticks(opened: Stepwell) -> None:
    opened.choose_engine(TEMPORAL, queue="bulk")
    assert [engine_of_item(opened, queue="bulk"), engine_of_item(opened), engine_of(opened)] == [TEMPORAL, None, None]
    opened.schedules.put("nightly", quiet, 1, cron="0 3 * * *", queue="bulk")
    opened.schedules.put("direct", quiet, 1, cron="0 3 * * *", engine=TEMPORAL)
    for name in ("nightly", "direct"):
        ticked = opened.schedules.run_now(name)
        [found] = [each for each in opened.queue.list() if each.item_id == ticked.item_id]
        assert found.workflow_id == "temporal:choices.quiet"


def test_choice_for_a_workflow_comes_before_that_of_its_workspace(opened: Stepwell) -> None:
    opened.choose_engine(TEMPORAL, workspace="default")
    opened.choose_engine("local", workflow="choices.quiet")
    assert engine_of(opened) is None
    opened.choose_engine(None, workflow="choices.quiet")
    assert engine_of(opened) == TEMPORAL


def test_engine_that_a_start_names_comes_before_every_choice(opened: Stepwell) -> None:
    opened.choose_engine(TEMPORAL, workspace="default")
    assert engine_of(opened, engine="local") is None
    opened.choose_engine("local", workspace="default")
    assert engine_of(opened, engine=TEMPORAL) == TEMPORAL


def test_moved_workspace_keeps_its_items_and_their_keys(opened: Stepwell) -> None:
    before = opened.enqueue(quiet, 1, key="once")
    opened.choose_engine(TEMPORAL, workspace="default")
    again = opened.enqueue(quiet, 1, key="once")
    assert again.item_id == before.item_id
    assert [each.workflow_id for each in opened.queue.list()] == ["choices.quiet"]


def test_choice_of_another_process_holds_within_a_second(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    with Stepwell(url, worker=False) as here, Stepwell(url, worker=False) as there:
        assert engine_of(here) is None
        there.choose_engine(TEMPORAL, workspace="default")
        parts_of(here).queue.engines.now = lambda: inf  # more than a second later
        assert engine_of(here) == TEMPORAL


@pytest.mark.parametrize(
    ("engine", "what"),
    [("cadence", {"workspace": "a"}), (TEMPORAL, {}), (TEMPORAL, {"workspace": "a", "queue": "b"}), (TEMPORAL, {"queue": ""})],
)
def test_choice_without_a_meaning_is_refused(opened: Stepwell, engine: str, what: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        opened.choose_engine(engine, **what)
    assert opened.engines() == []


def test_unknown_workspace_is_refused_as_without_a_choice(opened: Stepwell) -> None:
    opened.choose_engine(TEMPORAL, workspace="nobody")
    with pytest.raises(NotFound):
        opened.start(quiet, 1, workspace="nobody")


def test_command_line_chooses_and_lists_engines(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/well.db"

    def told(*words: str) -> str:
        done = CliRunner().invoke(cli, ["--url", url, "--json", "engine", *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    told("choose", "temporal", "--workspace", "acme")
    told("choose", "local", "--workflow", "checkout")
    assert [json.loads(line) for line in told("list").splitlines()] == [
        {"kind": "workflow", "name": "checkout", "engine": "local"},
        {"kind": "workspace", "name": "acme", "engine": "temporal"},
    ]
    told("choose", "default", "--workspace", "acme")
    assert "acme" not in told("list")
