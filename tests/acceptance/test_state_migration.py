"""State migrations: values brought to another version when they are read or written, and all at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.conftest import OpenWell
from tests.support.polling import until
from tests.support.store_urls import url as every_url

import stepwell
from stepwell import (
    FakeClock,
    InvalidInput,
    ItemStatus,
    KeyRing,
    Limits,
    MigrationFailed,
    Scope,
    StateNewer,
    Status,
    Stepwell,
    migration,
    step,
    verify_backup,
    workflow,
)
from stepwell.flow import call, define, set_variables, signal
from stepwell.model.commit import Claim
from stepwell.model.state_versions import registered_alone
from stepwell.testing.conformance.samples import answers
from stepwell.testing.store_access import store_under, write_unit

__all__ = ["every_url"]

WAIT = 60
PRICES = Scope.custom("prices")


def in_cents(value: Any) -> Any:
    return {"cents": round(value["euros"] * 100)}


def in_euros(value: Any) -> Any:
    return {"euros": value["cents"] / 100}


def prices_in_cents(**more: Any) -> None:
    migration(scope="custom/prices", from_version=1, to_version=2, **more)(in_cents)


def total_in_cents(value: Any) -> Any:
    variables = value["variables"]
    if "euros" in variables:
        variables["cents"] = variables.pop("euros") * 100
    value["context"]["is_new"] = True
    return value


def total_in_euros(value: Any) -> Any:
    variables = value["variables"]
    if "cents" in variables:
        variables["euros"] = variables.pop("cents") // 100
    del value["context"]["is_new"]
    return value


@step(name="migration.tell")
async def tell() -> dict[str, Any]:
    state = stepwell.current().state(PRICES)
    value = await state.get("lamp")
    state.set("seen", value)
    return value


@workflow(name="migration.shop")
async def shop() -> Any:
    variables = stepwell.current().variables
    variables.setdefault("euros", 5)
    await stepwell.wait_signal("go")
    return dict(variables)


@workflow(name="migration.reader")
async def reader() -> Any:
    return await tell()


declared = define("migration.declared", set_variables(euros=5), signal("go"), call(tell, {}), output="{{ variables }}")


# Lazily: on read, inside the next write.


def test_value_is_read_in_the_new_version_and_stored_by_the_next_write(every_url: str) -> None:
    with Stepwell(every_url, worker=False) as well:
        prices = well.state.at(PRICES)
        prices.set_many({"lamp": {"euros": 1.5}, "bed": {"euros": 2}})
        revision = prices.entry("lamp").revision
        prices_in_cents()
        assert prices.get("lamp") == {"cents": 150}
        assert prices.entry("lamp").revision == revision
        assert prices.all() == {"bed": {"cents": 200}, "lamp": {"cents": 150}}
        assert prices.get_many(["bed"]) == {"bed": {"cents": 200}}
        prices.compare_and_set("lamp", {"cents": 160}, revision=revision)
        with registered_alone():  # a process of the code before
            assert prices.get("bed") == {"euros": 2}
            with pytest.raises(StateNewer, match="key 'lamp' of 'custom/prices' is at version 2, and this process uses version 1"):
                prices.get("lamp")
            with pytest.raises(StateNewer):
                prices.set("lamp", {"euros": 1})
            with pytest.raises(StateNewer):
                prices.delete("lamp")
            assert prices.exists("lamp")
        assert prices.get("lamp") == {"cents": 160}


def test_counter_and_copy_build_on_the_migrated_value(every_url: str) -> None:
    with Stepwell(every_url, worker=False) as well:
        counts = well.state.custom("counts")
        counts.set_many({"a": 1, "b": 2})
        migration(scope=Scope.custom("counts"), from_version=1, to_version=2)(lambda value: value * 100)
        assert counts.increment("a") == 101
        assert counts.copy("b", "c")
        assert counts.merge("b", 7, "max") == 200
        assert counts.all() == {"a": 101, "b": 200, "c": 200}
        assert well.migrate_state().lines[0].versions == {2: 3}


def test_chain_of_migrations_is_walked_and_the_key_is_given_to_a_function_that_takes_it(open_well: OpenWell) -> None:
    well = open_well("memory://")
    users = well.state.at(Scope.of_user("ada"))
    users.set("name", "Ada")
    migration(scope="user", from_version=2, to_version=3)(lambda value, key: {**value, "from": key})
    migration(scope="user", from_version=1, to_version=2)(lambda value: {"text": value})
    assert users.get("name") == {"text": "Ada", "from": "name"}


def test_steps_templates_watchers_and_caches_see_the_new_version(open_well: OpenWell) -> None:
    well = open_well("memory://")
    prices = well.state.at(PRICES)
    prices.set("lamp", {"euros": 1.5})
    prices_in_cents()
    assert well.start(reader).result(WAIT) == {"cents": 150}
    assert prices.get("seen") == {"cents": 150}
    asks = define("migration.asks", call(tell, {}), output="{{ state.custom.prices.lamp.cents }}")
    assert well.start(asks, {}).result(WAIT) == 150


def test_values_of_another_scope_or_workspace_line_stay(open_well: OpenWell) -> None:
    well = open_well("memory://")
    well.state.custom("others").set("lamp", {"euros": 1})
    well.state.at(Scope.custom("prices", "acme")).set("lamp", {"euros": 1})
    prices_in_cents()
    assert well.state.custom("others").get("lamp") == {"euros": 1}
    assert well.state.at(Scope.custom("prices", "acme")).get("lamp") == {"cents": 100}  # a line has all workspaces


# Executions.


def test_execution_is_migrated_inside_its_next_commit(every_url: str) -> None:
    with Stepwell(every_url, worker=False) as well:
        well.create("one", workflow="shop", context={"a": 1})
        with well.transaction("one") as tx:
            tx.set_variable("euros", 3)
        migration(workflow="shop", from_version=1, to_version=2, back=total_in_euros)(total_in_cents)
        seen = well.load("one")
        assert (seen.variables, seen.context, seen.revision) == ({"cents": 300}, {"a": 1, "is_new": True}, 1)
        with well.transaction("one", commit_id="again") as tx:
            tx.update_context(lambda context: {**context, "saw": context["is_new"]})
        receipt = well.receipts("one")[-1]
        assert [each["type"] for each in receipt.mutations] == ["migrate_state", "patch_context"]
        state = well.load("one")
        assert (state.variables, state.context, state.identity.state_version) == (
            {"cents": 300},
            {"a": 1, "is_new": True, "saw": True},
            2,
        )
        assert well.verify("one").ok
        assert well.load("one", at=1).variables == {"euros": 3}
        with well.transaction("one", commit_id="again") as tx:  # a retry after a lost reply finds its first try
            tx.update_context(lambda context: {**context, "saw": context["is_new"]})
        assert tx.receipt == receipt
        well.create("two", workflow="shop")
        assert well.load("two").identity.state_version == 2
        with registered_alone():
            with pytest.raises(StateNewer, match="newer code has written it"):
                well.load("one")
            with pytest.raises(StateNewer), well.transaction("one") as tx:
                tx.set_variable("euros", 1)
        assert well.load("one").revision == 2


@pytest.mark.parametrize("what", [shop, declared], ids=["function", "declared"])
def test_run_that_waits_goes_on_in_the_new_version(every_url: str, what: Any) -> None:
    with Stepwell(every_url) as well:
        well.state.at(PRICES).set("lamp", {"euros": 1.5})
        run = well.start(what, execution_id="run") if what is shop else well.start(what, {}, execution_id="run")
        until(lambda: run.status() is Status.WAITING)
        migration(workflow=what.name, from_version=1, to_version=2)(total_in_cents)
        run.signal("go", 1)
        result = run.result(WAIT)
        assert result["cents"] == 500
        assert well.verify("run").ok
        assert sum(each["type"] == "migrate_state" for receipt in well.receipts("run") for each in receipt.mutations) == 1


def test_snapshot_of_the_version_before_is_restored_and_forked(open_well: OpenWell) -> None:
    well = open_well("memory://")
    well.create("one", workflow="shop")
    with well.transaction("one") as tx:
        tx.set_variable("euros", 3)
    before = well.snapshot("one")
    migration(workflow="shop", from_version=1, to_version=2)(total_in_cents)
    well.migrate_state()
    assert well.restore("one", before).variables == {"cents": 300}
    well.fork("one", "two", at=1)
    assert well.load("two").variables == {"cents": 300}
    assert well.migrate_state().migrated == 2
    assert well.verify("one").ok
    assert well.verify("two").ok


# All at once.


def test_bulk_migration_brings_everything_to_the_new_version(every_url: str, tmp_path: Path) -> None:
    with Stepwell(every_url, worker=False) as well:
        for name in ("default", "acme"):
            well.state.at(Scope.custom("prices", name)).set_many({f"k{n}": {"euros": n} for n in range(25)})
        for n in range(7):
            well.create(f"run-{n}", workflow="shop")
            with well.transaction(f"run-{n}") as tx:
                tx.set_variable("euros", n)
        prices_in_cents(back=in_euros)
        migration(workflow="shop", from_version=1, to_version=2, back=total_in_euros)(total_in_cents)
        seen: list[tuple[int, int]] = []
        plan = well.migrate_state(dry_run=True)
        assert [(each.line, each.versions, each.migrated) for each in plan.lines] == [
            ("custom/prices", {1: 50}, 50),
            ("execution/shop", {1: 7}, 7),
        ]
        assert (plan.is_dry_run, plan.is_verified) == (True, False)
        report = well.migrate_state(batch=4, backup=tmp_path / "before", progress=lambda done, total: seen.append((done, total)))
        assert (report.migrated, report.failed, report.held, report.is_verified) == (57, 0, 0, True)
        assert seen[-1] == (57, 57)
        assert seen == sorted(seen)
        assert verify_backup(tmp_path / "before").ok
        assert [well.load(f"run-{n}").variables for n in range(7)] == [{"cents": n * 100} for n in range(7)]
        assert all(well.verify(f"run-{n}").ok for n in range(7))
        assert [len(well.receipts(f"run-{n}")) for n in range(7)] == [3] * 7
        again = well.migrate_state()
        assert (again.migrated, again.is_verified) == (0, True)
        with registered_alone(), pytest.raises(StateNewer):
            well.state.at(PRICES).get("k1")
        # A rollback: back to the version before, so that the code before can read everything.
        back = well.migrate_state(scope="custom/prices", to_version=1)
        back = well.migrate_state(workflow="shop", to_version=1)
        assert back.is_verified
        with registered_alone():
            assert well.state.at(Scope.custom("prices", "acme")).get("k3") == {"euros": 3}
            assert well.load("run-3").variables == {"euros": 3}
            assert well.load("run-3").context == {}


def test_backup_of_migrated_values_restores_their_versions(every_url: str, tmp_path: Path) -> None:
    prices_in_cents()
    with Stepwell("memory://", worker=False) as well:
        well.state.at(PRICES).set("lamp", {"cents": 150})
        made = well.backup(tmp_path / "backup")
    with Stepwell(every_url, worker=False) as well:
        assert well.restore_backup(tmp_path / "backup").digest == made.digest
        assert well.state.at(PRICES).get("lamp") == {"cents": 150}
        assert well.migrate_state().lines[0].versions == {2: 1}


def test_value_that_fails_is_reported_and_kept_and_the_rest_goes_on(every_url: str) -> None:
    with Stepwell(every_url, worker=False) as well:
        prices = well.state.at(PRICES)
        prices.set_many({"a": {"euros": 1}, "bad": {"dollars": 1}, "z": {"euros": 2}})
        well.create("fine", workflow="shop")
        well.create("bad", workflow="shop", context={"is_bad": True})
        prices_in_cents()

        def refuse(value: Any) -> Any:
            if value["context"].get("is_bad"):
                raise ValueError("it is bad")
            return value

        migration(workflow="shop", from_version=1, to_version=2)(refuse)
        report = well.migrate_state()
        assert (report.migrated, report.failed, report.is_verified) == (3, 2, True)
        assert [(each.scope, each.key) for each in report.problems] == [("custom/default/prices", "bad"), ("", "bad")]
        assert "KeyError: 'euros'" in report.problems[0].message
        assert "from version 1 to 2 failed: ValueError: it is bad" in report.problems[1].message
        assert prices.get("z") == {"cents": 200}
        with pytest.raises(MigrationFailed, match="KeyError"):
            prices.get("bad")
        with pytest.raises(MigrationFailed, match="it is bad"):
            well.load("bad")
        with registered_alone():
            assert prices.get("bad") == {"dollars": 1}
            assert (well.load("bad").context, well.load("bad").revision) == ({"is_bad": True}, 0)


def test_migration_stops_at_the_first_failure_by_choice(open_well: OpenWell) -> None:
    well = open_well("memory://")
    well.state.at(PRICES).set_many({"a": {"dollars": 1}, "b": {"dollars": 1}, "c": {"euros": 1}})
    prices_in_cents()
    report = well.migrate_state(stop_at_failure=True)
    assert (report.migrated, report.failed, report.is_verified) == (0, 1, False)


def test_impure_migration_is_refused(open_well: OpenWell) -> None:
    well = open_well("memory://")
    well.state.at(PRICES).set("a", 1)
    well.create("run", workflow="shop")
    dice = random.Random(7)
    migration(scope="custom/prices", from_version=1, to_version=2)(lambda value: value + dice.random())
    migration(workflow="shop", from_version=1, to_version=2)(lambda value: {**value, "context": {"luck": dice.random()}})
    report = well.migrate_state(dry_run=True)
    assert [each.message.split(":")[0] for each in report.problems] == [
        "a migration of 'custom/prices' is not pure",
        "a migration of 'execution/shop' is not pure",
    ]
    assert well.migrate_state().migrated == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({1, 2}, "gives no value"),
        ({"context": {}}, 'returns {"context": ..., "variables": ...}'),
        ({"context": [], "variables": {}}, "returns a dict as the context"),
        ({"context": {"$x": 1}, "variables": {}}, "begins with \\$"),
    ],
)
def test_migration_that_returns_what_it_must_not_fails(open_well: OpenWell, given: Any, said: str) -> None:
    well = open_well("memory://")
    well.create("run", workflow="shop")
    migration(workflow="shop", from_version=1, to_version=2)(lambda _: given)
    with pytest.raises(MigrationFailed, match=said):
        well.load("run")
    assert said.replace("\\", "") in well.migrate_state().problems[0].message


def test_value_that_grows_over_a_limit_is_reported_and_kept(open_well: OpenWell) -> None:
    well = open_well("memory://", limits=Limits(scope_bytes=100))
    well.state.at(PRICES).set_many({"a": "x" * 10, "b": "y" * 40})
    migration(scope="custom/prices", from_version=1, to_version=2)(lambda value: value * 2)
    report = well.migrate_state()
    assert (report.migrated, [each.key for each in report.problems]) == (1, ["b"])
    assert "over the limit scope_bytes=100" in report.problems[0].message


def test_time_to_live_of_a_migrated_value_stays(every_url: str, clock: FakeClock) -> None:
    with Stepwell(every_url, worker=False, clock=clock) as well:
        prices = well.state.at(PRICES)
        prices.set("lamp", {"euros": 1}, ttl=60)
        prices.set("sliding", {"euros": 1}, ttl=60, sliding=True)
        ends = [prices.entry("lamp").expires_at, prices.entry("sliding").expires_at]
        prices_in_cents()
        assert well.migrate_state().migrated == 2
        assert [prices.entry("lamp").expires_at, prices.entry("sliding").expires_at] == ends
        clock.advance(61)
        assert prices.all() == {}


def test_newer_value_is_refused_before_anything_is_written(open_well: OpenWell, tmp_path: Path) -> None:
    well = open_well("memory://")
    prices = well.state.at(PRICES)
    prices.set("a", {"euros": 1})
    with registered_alone():
        prices_in_cents()
        migration(scope="custom/prices", from_version=2, to_version=3)(lambda value: value)
        prices.set("z", {"cents": 1})
    prices_in_cents()
    with pytest.raises(StateNewer, match="key 'z' in scope 'custom/default/prices' is at version 3"):
        well.migrate_state(backup=tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    with registered_alone():
        assert prices.get("a") == {"euros": 1}


def test_code_that_is_ahead_reads_what_newer_code_writes(every_url: str) -> None:
    """A rolling deployment, and a rollback: both versions work on the same values without an error (T49)."""
    with Stepwell(every_url, worker=False) as well:
        prices = well.state.at(PRICES)
        prices.set("lamp", {"euros": 1.5})
        well.create("run", workflow="shop")
        with well.transaction("run") as tx:
            tx.set_variable("euros", 3)

        def as_new() -> None:
            prices_in_cents(back=in_euros)
            migration(workflow="shop", from_version=1, to_version=2, back=total_in_euros)(total_in_cents)

        def as_old() -> None:
            prices_in_cents(back=in_euros, ahead=True)
            migration(workflow="shop", from_version=1, to_version=2, back=total_in_euros, ahead=True)(total_in_cents)

        for turn in range(3):
            with registered_alone():
                as_new()
                assert prices.get("lamp") == {"cents": 150 + 200 * turn}
                prices.set("lamp", {"cents": 250 + 200 * turn})
                assert well.load("run").variables == {"cents": 300 + 200 * turn}
                with well.transaction("run") as tx:
                    tx.set_variable("cents", 400 + 200 * turn)
            with registered_alone():
                as_old()
                assert prices.get("lamp") == {"euros": 2.5 + 2 * turn}
                prices.set("lamp", {"euros": 3.5 + 2 * turn})
                assert well.load("run").variables == {"euros": 4 + 2 * turn}
                with well.transaction("run") as tx:
                    tx.set_variable("euros", 5 + 2 * turn)
        assert well.verify("run").ok


def test_held_execution_is_left_to_its_worker(open_well: OpenWell) -> None:
    """The fence rules: a session that is under way has read the state, and goes on from it."""
    well = open_well("memory://", worker=False)
    run = well.start(shop, execution_id="run")
    write_unit(well, Claim("run", "somebody", 30))
    migration(workflow="migration.shop", from_version=1, to_version=2)(total_in_cents)
    report = well.migrate_state()
    assert (report.migrated, report.held, report.is_verified) == (0, 1, True)
    assert len(well.receipts(run.execution_id)) == 1


def test_run_of_another_engine_keeps_its_version_until_it_ends(open_well: OpenWell) -> None:
    """Its engine has what it has read in a history of its own."""
    well = open_well("memory://", worker=False)
    well.start(shop, execution_id="run", engine="temporal")
    with well.transaction("run") as tx:
        tx.set_variable("euros", 3)
    migration(workflow="migration.shop", from_version=1, to_version=2)(total_in_cents)
    with well.transaction("run") as tx:
        tx.set_variable("euros", 4)
    assert (well.load("run").variables, well.load("run").identity.state_version) == ({"cents": 400}, 1)
    report = well.migrate_state()
    assert (report.migrated, report.held) == (0, 1)
    assert well.verify("run").ok


def claims_of(well: Any, execution_id: str) -> int:
    head = store_under(well).head(execution_id)
    return 0 if head is None else head.claims


def test_execution_that_a_dead_worker_left_is_claimed_and_migrated(every_url: str, clock: FakeClock) -> None:
    with Stepwell(every_url, worker=False, clock=clock) as well:
        well.start(shop, execution_id="run")
        [lease] = answers(write_unit(well, Claim("run", "dead", 30)))
        migration(workflow="migration.shop", from_version=1, to_version=2)(total_in_cents)
        assert well.migrate_state().held == 1
        clock.advance(31)
        report = well.migrate_state()
        assert (report.migrated, report.held, report.is_verified) == (1, 0, True)
        head = store_under(well).head("run")
        assert head is not None
        assert head.fence > lease.fence  # what the dead worker may still send is refused
        assert (head.holder, head.wake_ms is not None and head.wake_ms <= store_under(well).now_ms()) == (None, True)
        assert well.verify("run").ok


def test_run_of_newer_code_is_left_to_newer_workers(every_url: str) -> None:
    with Stepwell(every_url) as well:
        with registered_alone():
            migration(workflow="migration.shop", from_version=1, to_version=2)(total_in_cents)
            run = well.start(shop, execution_id="run")
            until(lambda: run.status() is Status.WAITING)
        before = [each.digest for each in well.receipts("run")]
        run.signal("go", 1)
        until(lambda: claims_of(well, "run") > 0)
        assert [each.digest for each in well.receipts("run")] == before
        migration(workflow="migration.shop", from_version=1, to_version=2)(total_in_cents)
        assert run.result(WAIT)["euros"] == 5


def _waits(item: Any) -> bool:
    return item.state().status is ItemStatus.DISPATCHED and item.run().status() is Status.WAITING


def test_queue_drains_while_everything_is_migrated(every_url: str) -> None:
    """Live executions go on meanwhile, with no error and nothing lost."""
    with Stepwell(every_url) as well:
        prices = well.state.at(PRICES)
        prices.set_many({f"k{n}": {"euros": n} for n in range(100)})
        for n in range(40):
            well.create(f"hand-{n}", workflow="migration.shop")
            with well.transaction(f"hand-{n}") as tx:
                tx.set_variable("euros", n)
        items = [well.enqueue(shop) for _ in range(10)]
        until(lambda: all(_waits(item) for item in items))
        prices_in_cents()
        migration(workflow="migration.shop", from_version=1, to_version=2)(total_in_cents)
        more = [well.enqueue(shop) for _ in range(10)]
        for item in items:
            item.run().signal("go", 1)
        report = well.migrate_state(batch=7)
        assert (report.failed, report.is_verified) == (0, True)
        for item in more:
            until(lambda item=item: _waits(item))
            item.run().signal("go", 1)
        assert [next(iter(item.result(WAIT))) for item in items] == ["cents"] * 10
        assert [well.load(f"hand-{n}").variables for n in range(40)] == [{"cents": n * 100} for n in range(40)]
        assert all(well.verify(each.execution_id).ok for each in well.executions.list(limit=100))


# Refused.


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: migration(from_version=1, to_version=2), "a migration is of a scope or of a workflow"),
    (lambda: migration(scope="a", workflow="b", from_version=1, to_version=2), "a migration is of a scope or of a workflow"),
    (lambda: migration(scope="prices", from_version=1, to_version=2), "'prices' is no scope of a migration"),
    (lambda: migration(scope="custom/a/b", from_version=1, to_version=2), "is no scope of a migration"),
    (lambda: migration(scope="definition", from_version=1, to_version=2), "is no scope of a migration"),
    (lambda: migration(scope=7, from_version=1, to_version=2), "is a text or a Scope, not 7"),  # type: ignore[arg-type]
    (lambda: migration(scope="user", from_version=2, to_version=1), "which would make a cycle"),
    (lambda: migration(scope="user", from_version=1, to_version=1), "which would make a cycle"),
    (lambda: migration(scope="user", from_version=1, to_version=3), "leads to the next version, 2, not from 1 to 3"),
    (lambda: migration(scope="user", from_version=0, to_version=1), "whole numbers from 1 on, not 0"),
    (lambda: migration(scope="user", from_version=True, to_version=2), "whole numbers from 1 on, not True"),
    (lambda: migration(scope="user", from_version=1, to_version=2, ahead=True), "that is ahead needs back="),
    (lambda: migration(scope="user", from_version=1, to_version=2, back=3), "back is a function"),  # type: ignore[arg-type]
    (lambda: migration(scope="user", from_version=1, to_version=2)(dict), "is a function from a value to a value"),
    (lambda: migration(scope="user", from_version=1, to_version=2)(lambda: 1), "takes a value, or a value and its key"),
    (lambda: migration(scope="user", from_version=1, to_version=2)(_async), "is a plain function"),
]


async def _async(value: Any) -> Any:
    return value


@pytest.mark.parametrize(("make", "said"), BAD)
def test_bad_migration_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make()


def test_two_migrations_of_one_step_are_refused() -> None:
    prices_in_cents()
    prices_in_cents()  # the same one again: its module was loaded twice
    with pytest.raises(InvalidInput, match="there are two migrations of 'custom/prices' from version 1"):
        migration(scope="custom/prices", from_version=1, to_version=2)(in_euros)
    with pytest.raises(InvalidInput, match="which share values"):
        migration(scope="custom", from_version=1, to_version=2)(in_cents)


def test_gap_between_versions_is_refused_at_the_first_use(open_well: OpenWell) -> None:
    well = open_well("memory://")
    prices_in_cents()
    migration(scope="custom/prices", from_version=3, to_version=4)(in_cents)
    for use in (lambda: well.state.at(PRICES).set("a", 1), well.migrate_state):
        with pytest.raises(InvalidInput, match="have a gap: none leads from version 2 to 3"):
            use()
    assert well.state.at(PRICES).keys() == []


def test_value_older_than_the_first_migration_is_reported(open_well: OpenWell) -> None:
    well = open_well("memory://")
    well.state.at(PRICES).set("a", {"euros": 1})
    migration(scope="custom/prices", from_version=2, to_version=3)(lambda value: value)
    with pytest.raises(MigrationFailed, match="no migration of this process starts there; the first is from version 2"):
        well.state.at(PRICES).get("a")
    assert well.migrate_state().failed == 1


def test_bad_request_is_refused(open_well: OpenWell, tmp_path: Path) -> None:
    well = open_well("memory://", worker=False)
    with pytest.raises(InvalidInput, match="this process has no migrations; import the modules"):
        well.migrate_state()
    prices_in_cents()
    migration(workflow="shop", from_version=1, to_version=2)(total_in_cents)
    for arguments, said in [
        ({"scope": "user"}, "no migrations of 'user'"),
        ({"workflow": "other"}, "no migrations of 'execution/other'"),
        ({"to_version": 1}, "a version is of one scope or workflow"),
        ({"scope": "custom/prices", "to_version": 3}, "has the versions 1 to 2, not 3"),
        ({"batch": 0}, "a batch has 1 to 10,000 values"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            well.migrate_state(**arguments)
    well.state.at(PRICES).set("a", {"cents": 1})
    with pytest.raises(StateNewer, match="there is no way from there to 1"):
        well.migrate_state(scope="custom/prices", to_version=1)
    well.backup(tmp_path / "backup")
    with pytest.raises(InvalidInput, match="has a backup already"):
        well.migrate_state(backup=tmp_path / "backup")


def test_encrypted_values_are_migrated(every_url: str) -> None:
    with Stepwell(every_url, worker=False, encryption=KeyRing.of({"k1": b"1" * 32})) as well:
        prices, counts = well.state.at(PRICES), well.state.custom("counts")
        prices.set("lamp", {"euros": 1.5})
        counts.set_many({"a": 1, "b": 2})
        well.create("run", workflow="shop")
        with well.transaction("run") as tx:
            tx.set_variable("euros", 3)
        prices_in_cents()
        migration(scope="custom/counts", from_version=1, to_version=2)(ten_times)
        migration(workflow="shop", from_version=1, to_version=2)(total_in_cents)
        assert (counts.increment("a"), prices.get("lamp")) == (11, {"cents": 150})
        report = well.migrate_state()
        assert (report.migrated, report.failed, report.is_verified) == (3, 0, True)
        assert (prices.get("lamp"), counts.all(), well.load("run").variables) == (
            {"cents": 150},
            {"a": 11, "b": 20},
            {"cents": 300},
        )
        assert well.verify("run").ok


def ten_times(value: int) -> int:
    return value * 10
