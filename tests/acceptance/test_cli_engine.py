"""``--engine temporal`` on the command line: what is asked for is left for Temporal's workers."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from stepwell import Stepwell
from stepwell.cli.main import cli
from stepwell.model.queue_item import workflow_and_engine

DOCUMENT = "name: quick\nversion: 1\ndo:\n  - map_data: {value: 1}\n"


def asked(tmp_path: Path, command: str, *words: str) -> str:
    (tmp_path / "quick.yaml").write_text(DOCUMENT)
    url = f"sqlite:///{tmp_path}/well.db"
    done = CliRunner().invoke(cli, ["--url", url, command, str(tmp_path / "quick.yaml"), *words])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_started_run_is_left_for_temporal(tmp_path: Path) -> None:
    run_id = asked(tmp_path, "start", "--engine", "temporal")
    with Stepwell(f"sqlite:///{tmp_path}/well.db") as well:
        assert well.load(run_id).identity.engine == "temporal"
        assert well.run(run_id).status() == "RUNNING"


def test_enqueued_item_is_left_for_temporal(tmp_path: Path) -> None:
    asked(tmp_path, "enqueue", "--engine", "temporal")
    with Stepwell(f"sqlite:///{tmp_path}/well.db") as well:
        [item] = well.queue.list()
        assert workflow_and_engine(item.workflow_id, "temporal") == ("quick", "temporal")


def test_local_engine_is_the_default(tmp_path: Path) -> None:
    run_id = asked(tmp_path, "start")
    with Stepwell(f"sqlite:///{tmp_path}/well.db", worker=False) as well:
        assert well.load(run_id).identity.engine is None
