"""The command line: queue, schedules and workspaces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command_line import Shell, shell

from stepwell import ExecutionFailed, Stepwell

__all__ = ["shell"]

LAMP = ("-i", '{"item": "lamp", "cents": 5}')


def enqueue(shell: Shell, *options: str) -> str:
    """Put a request for a checkout into the queue; the item's id."""
    done = shell("enqueue", "shop.py:checkout", *LAMP, *options)
    assert done.code == 0, done.err
    return done.out.strip()


def test_enqueued_item_is_run_by_a_worker(shell: Shell):
    item = enqueue(shell, "--id", "a")
    shown = shell("queue", "show", item, "--json").json
    assert (shown["status"], shown["execution_id"], shown["why"]["codes"]) == ("QUEUED", "a", ["ready"])
    with Stepwell(shell.url) as well:
        assert well.queue.item(item).result(timeout=60)["paid"] == {"paid": 5}
    assert shell("show", "a").code == 0


@pytest.mark.parametrize("form", ["--json", "--debug"])
def test_retried_run_of_an_item_says_that_it_waits_for_its_turn(shell: Shell, form: str):
    item = shell("enqueue", "shop.py:checkout", "-i", '{"item": "lamp", "cents": -5}', "--id", "a").out.strip()
    with Stepwell(shell.url) as well, pytest.raises(ExecutionFailed):
        well.queue.item(item).result(timeout=60)
    told = shell("retry", "a", form)
    if form == "--json":
        assert told.json == {"execution_id": "a", "status": "PENDING", "item_id": item}
    else:
        assert f"a is PENDING, and continues when queue item {item} gets a slot" in told.err
    assert shell("queue", "show", item, "--json").json["status"] == "QUEUED"
    assert shell("retry", "a").code == 4


def test_same_key_is_the_same_item(shell: Shell):
    assert enqueue(shell, "--key", "k") == enqueue(shell, "--key", "k")
    told = shell("enqueue", "shop.py:checkout", *LAMP, "--key", "k", "--json").json
    assert set(told) == {"item_id", "execution_id", "status"}


def test_items_are_listed_shown_cancelled_and_redriven(shell: Shell):
    first, second = enqueue(shell, "--priority", "3"), enqueue(shell, "--queue", "slow", "--delay", "1h")
    assert [line.split("\t")[0] for line in shell("queue", "list").out.splitlines()] == [second, first]
    assert [each["item_id"] for each in shell("queue", "list", "--queue", "slow", "--json").lines] == [second]
    assert "delayed" in shell("queue", "show", second, "--json").json["why"]["codes"]
    assert "priority       3" in shell("queue", "show", first).out
    assert shell("queue", "cancel", first, "--json").json["status"] == "CANCELLED"
    assert [each["item_id"] for each in shell("queue", "list", "-s", "cancelled", "--json").lines] == [first]
    assert shell("queue", "redrive", first, "--json").json["item_id"] == first
    for name in ("show", "cancel", "redrive"):
        assert shell("queue", name, "nothing").code == 3


def test_queue_is_measured_limited_paused_and_drained(shell: Shell):
    enqueue(shell)
    assert shell("queue", "stats", "--json").lines[0]["ready"] == 1
    assert shell("queue", "stats").out.startswith("default\tdefault\t1\t")
    assert shell("queue", "put", "slow", "-c", "2", "--rate", "5", "--json").json["concurrency"] == 2
    assert shell("queue", "pause", "slow", "--json").json["is_paused"] is True
    assert shell("queue", "resume", "slow", "--json").json["is_paused"] is False
    assert shell("queue", "drain", "slow", "--json").json == {"name": "slow", "is_drained": True}
    assert "stepwell queue resume slow" in shell("queue", "drain", "slow").err
    assert 'stepwell_queue_ready{workspace="default",queue="default"} 1' in shell("queue", "metrics").out
    assert "stepwell_queue_ready" in shell("queue", "metrics", "--json").json["metrics"]
    assert shell("queue", "workers").out == ""
    assert shell("queue", "put", "slow", "-c", "-1").code == 2


def test_queue_of_which_nothing_may_start_is_not_told_as_one_without_limits(shell: Shell):
    assert shell("queue", "put", "shut", "-c", "0", "--rate", "0").err == "queue shut: 0 concurrently, 0 per second\n"
    assert shell("queue", "put", "shut", "--rate", "2").err == "queue shut: 0 concurrently, 2 per second\n"
    unlimited = ("--unlimited", "concurrency", "--unlimited", "rate_per_second")
    assert shell("queue", "put", "shut", *unlimited).err == "queue shut: any number concurrently, any number per second\n"


def test_metrics_stay_one_line_each_whatever_a_workspace_is_called(shell: Shell):
    shell("workspace", "put", "a\u2028b\rc", "--tier", "scale")
    enqueue(shell, "-w", "a\u2028b\rc")
    lines = shell("queue", "metrics").out.splitlines()
    assert all(line.startswith(("# ", "stepwell_")) for line in lines)
    assert 'stepwell_queue_ready{workspace="a\\u2028b\\x0dc",queue="default"} 1' in lines


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("enqueue", "nothing"), 3),
        (("enqueue", "shop.py:checkout"), 5),
        (("enqueue", "shop.py:checkout", *LAMP, "--delay", "soon"), 2),
        (("enqueue", "shop.py:checkout", *LAMP, "--at", "tomorrow"), 2),
        (("enqueue", "shop.py:checkout", *LAMP, "--attempts", "0"), 2),
        (("schedule", "put", "s", "nothing", "--cron", "* * * * *"), 3),
        (("schedule", "put", "s", "shop.py:checkout", *LAMP, "--cron", "nonsense"), 5),
        (("schedule", "put", "s", "shop.py:checkout", *LAMP), 5),
        (("schedule", "put", "s", "shop.py:checkout", *LAMP, "--every", "-1"), 2),
        (("workspace", "put", "acme", "--tier", "nothing"), 3),
        (("workspace", "tier", "gold", "--weight", "0"), 2),
        (("workspace", "tier", "gold", "-c", "-1"), 2),
    ],
)
def test_what_cannot_be_asked_for_is_refused_on_one_line(shell: Shell, arguments: tuple[str, ...], code: int):
    done = shell(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1), done.err


def test_schedule_is_put_shown_paused_run_and_deleted(shell: Shell):
    made = shell("schedule", "put", "nightly", "shop.py:checkout", *LAMP, "--cron", "0 3 * * *", "--zone", "Asia/Tokyo", "--json")
    assert (made.json["name"], made.json["zone"]) == ("nightly", "Asia/Tokyo")
    assert shell("schedule", "list").out.startswith("nightly\tcheckout\tdefault\t0 3 * * *\t")
    assert [each["name"] for each in shell("schedule", "list", "--json").lines] == ["nightly"]
    assert len(shell("schedule", "show", "nightly", "-n", "3", "--json").json["next"]) == 3
    assert "cron           0 3 * * *" in shell("schedule", "show", "nightly").out
    assert shell("schedule", "pause", "nightly", "--json").json["is_paused"] is True
    assert shell("schedule", "resume", "nightly", "--json").json["is_paused"] is False
    ran = shell("schedule", "run", "nightly", "--json").json["item_id"]
    assert shell("queue", "show", ran, "--json").json["workflow_id"] == "checkout"
    assert shell("schedule", "delete", "nightly", "--json").json == {"name": "nightly", "deleted": True}
    for name in ("show", "pause", "resume", "run", "delete"):
        assert shell("schedule", name, "nightly").code == 3


def test_schedule_takes_an_interval_or_a_moment(shell: Shell):
    assert shell("schedule", "put", "often", "shop.py:checkout", *LAMP, "--every", "5m", "--json").json["every_seconds"] == 300
    once = shell("schedule", "put", "once", "shop.py:checkout", *LAMP, "--at", "2127-01-01T09:00:00+01:00", "--json").json
    assert once["next_at"] == "2127-01-01T08:00:00Z"


def test_workspace_is_put_paused_and_given_a_tier(shell: Shell):
    assert shell("workspace", "put", "acme", "--tier", "scale", "--json").json["tier"] == "scale"
    assert "acme\tscale\tfalse" in shell("workspace", "list").out.splitlines()
    assert shell("workspace", "pause", "acme", "--json").json["is_paused"] is True
    assert {"workspace_id": "acme", "is_paused": True}.items() <= shell("workspace", "list", "--json").lines[0].items()
    assert shell("workspace", "resume", "acme").code == 0
    gold = shell("workspace", "tier", "gold", "-c", "7", "--queue-depth", "9", "--json").json
    assert (gold["concurrency"], gold["queue_depth"]) == (7, 9)
    assert gold["child_concurrency"] == 100
    assert shell("workspace", "tier", "gold", "--child-concurrency", "5", "--json").json["child_concurrency"] == 5
    freed = shell("workspace", "tier", "gold", "--unlimited", "queue_depth", "--json").json
    assert (freed["concurrency"], freed["queue_depth"]) == (7, None)
    assert "gold" in {json.loads(line)["name"] for line in shell("workspace", "tiers", "--json").out.splitlines()}
    assert shell("workspace", "pause", "nothing").code == 3


def test_limit_is_overridden_shown_and_ended(shell: Shell):
    assert shell("workspace", "put", "acme").code == 0
    done = shell("workspace", "limit", "acme", "state_bytes", "2GiB", "--for", "7d", "--reason", "import", "--json").json
    assert done["overrides"]["state_bytes"]["value"] == 2 * 1024**3
    assert shell("workspace", "limit", "acme", "concurrency", "none", "--for", "1h").code == 0
    amounts = shell("usage", "-w", "acme", "--json").json["amounts"]
    assert (amounts["state_bytes"]["left"], amounts["concurrency"]["maximum"]) == (2 * 1024**3, None)
    assert "2,147,483,648" in shell("usage", "-w", "acme").out
    assert shell("workspace", "limit", "acme", "state_bytes", "--end", "--json").json["overrides"].keys() == {"concurrency"}


@pytest.mark.parametrize(
    "arguments",
    [("state_bytes", "2GiB"), ("state_bytes",), ("state_bytes", "2GiB", "--for", "7d", "--end"), ("speed", "1", "--for", "1d")],
)
def test_override_without_a_value_or_an_end_is_refused(shell: Shell, arguments: tuple[str, ...]):
    assert shell("workspace", "put", "acme").code == 0
    assert shell("workspace", "limit", "acme", *arguments).code == 2
    assert shell("workspace", "limit", "acme", "weight", "heavy", "--for", "1d").code == 5


def test_usage_of_a_run_a_workflow_and_a_scope_is_shown(shell: Shell):
    assert shell("run", "shop.py:checkout", *LAMP, "--id", "a").code == 0
    assert shell("usage", "--run", "a", "--json").json["amounts"]["steps"]["used"] >= 1
    assert shell("usage", "--workflow", "checkout", "--json").json["amounts"]["executions"]["used"] == 1
    assert shell("usage", "--scope", "custom/x", "--json").json["amounts"]["scope_keys"]["left"] == 10_000
    assert shell("usage", "--scope", "custom/x", "--run", "a").code == 2


def test_retention_is_set_planned_applied_and_shown(shell: Shell, tmp_path: Path):
    assert shell("run", "shop.py:checkout", *LAMP, "--id", "a").code == 0
    folder = str(tmp_path / "archive")
    done = shell("retention", "put", "--runs", "completed=0s", "--runs", "FAILED=1d", "--archive", folder, "--json").json
    assert (done["tier"], done["executions"]) == ("*", {"COMPLETED": 0.0, "FAILED": 86_400.0})
    assert [each["tier"] for each in shell("retention", "list", "--json").lines] == ["*"]
    plan = shell("retention", "plan", "--json").json
    assert (plan["counts"]["remove"], plan["first"][0]["execution_id"]) == (1, "a")
    assert "executions COMPLETED 0s" in shell("retention", "plan").out
    assert shell("retention", "apply", "--json").json["removed"] == 1
    gone = shell("show", "a")
    assert (gone.code, "was removed at" in gone.err) == (3, True)
    assert shell("retention", "show", "a", "--json").json["rule"] == "executions COMPLETED 0s"
    assert [each["execution_id"] for each in shell("retention", "tombstones", "--json").lines] == ["a"]
    assert shell("retention", "verify", folder, "--json").json["ok"]
    [path] = Path(folder).glob("*/*")
    path.write_bytes(b"?")
    assert shell("retention", "verify", folder).code == 1
    assert shell("retention", "put", "--runs", "1d", "--runs", "FAILED=1d").code == 5
    assert shell("retention", "remove", "--json").json["removed"]
