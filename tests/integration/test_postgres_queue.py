"""The queue on PostgreSQL: what many processes do to each other, and how much a claim reads."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from time import monotonic

import msgspec
import psycopg
import pytest
from tests.support.postgres_server import PostgresServer

from stepwell.clock import SystemClock
from stepwell.contract.store import Store
from stepwell.errors import ValidationFailed
from stepwell.model.commit import Unit, Written
from stepwell.model.limits import Limits
from stepwell.model.queue_item import (
    CancelItem,
    Claimed,
    ClaimItems,
    Enqueue,
    Enqueued,
    ItemMark,
    ItemQuery,
    PutQueue,
    PutTier,
    PutWorkspace,
    QueueSettings,
    RecoverItems,
    ReturnItem,
    Tier,
    Workspace,
)
from stepwell.stores.postgres.statements import statements_of
from stepwell.stores.postgres.store import PostgresStore
from stepwell.testing.conformance.samples import (
    SampleExecution,
    add,
    added,
    answers,
    claim_items,
    ids_of,
    landed,
    new_item,
    put,
    put_workspace,
    recover,
    statuses,
    used,
    write,
)

Session = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def open_one(postgres_url: str) -> Iterator[Callable[[], Store]]:
    """Opens stores on one schema, as processes of their own would."""
    opened: list[Store] = []

    def open_store() -> Store:
        store = PostgresStore(postgres_url, SystemClock(), Limits())
        store.open()
        opened.append(store)
        return store

    yield open_store
    for store in opened:
        store.close()


@pytest.fixture
def store(open_one: Callable[[], Store]) -> Store:
    return open_one()


class Outside:
    """A session that claims by hand and takes its time."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server, self._schema = server, schema

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction that is left open for as long as the block runs, then rolled back."""
        with psycopg.connect(self._server.dsn) as connection:
            yield connection
            connection.rollback()

    def claim(self, connection: Session, most: int = 10) -> list[tuple[object, ...]]:
        """Return the items that a claim takes in this transaction."""
        query = f"SELECT * FROM {self._schema}.claim_items('outside', 60000, %s, '{{}}', '{{}}', 0)"
        return connection.execute(query, [most]).fetchall()

    def run_claim_statement(self, connection: Session) -> list[tuple[object, ...]]:
        """Return the items that the store's own statement claims in this transaction, with the locks that it takes."""
        arguments = ["outside", 60_000, 10, list[str](), list[str](), 0]
        return psycopg.RawCursor(connection).execute(statements_of(self._schema)["claim_items"], arguments).fetchall()

    def wait_for(self, work: Future[object]) -> None:
        """Until something is done, or waits for a lock."""
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            while not work.done() and not connection.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall():
                pass

    def gather_statistics(self, command: str) -> None:
        """Run ANALYZE or VACUUM ANALYZE, which autovacuum runs at a time that no test can choose.

        From here on it does not: the plans of a test are those for these statistics.
        """
        with psycopg.connect(self._server.dsn, autocommit=True) as connection:
            for table in ("items", "workspaces", "tiers", "queues"):
                connection.execute(f"ALTER TABLE {self._schema}.{table} SET (autovacuum_enabled = false)")
                if command:
                    connection.execute(f"{command} {self._schema}.{table}")

    def reads(self, connection: Session, table: str = "items") -> tuple[int, int]:
        """The sequential scans of this transaction, and how many rows it fetched through indexes."""
        query = "SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE schemaname = %s AND relname = %s"
        [(scans, fetched)] = connection.execute(query, [self._schema, table]).fetchall()
        assert isinstance(scans, int)
        assert isinstance(fetched, int)
        return scans, fetched


@pytest.fixture
def outside(postgres_server: PostgresServer, postgres_schema: str) -> Outside:
    return Outside(postgres_server, postgres_schema)


def test_second_claimer_takes_nothing_of_a_workspace_whose_claim_is_under_way(store: Store, outside: Outside) -> None:
    """T34: the first claim's transaction is held open; the second passes the workspace over, and waits for nobody."""
    put_workspace(store, "acme", concurrency=1)
    add(store, *(new_item(f"i{number}", "acme") for number in range(3)))
    with outside.transaction() as first:
        assert len(outside.claim(first)) == 1
        add(store, "other")
        assert ids_of(claim_items(store)) == ["other"]
        assert claim_items(store) == []
    assert ids_of(claim_items(store)) == ["i0"]
    assert claim_items(store) == []


def test_second_claimer_takes_nothing_of_a_limited_queue_whose_claim_is_under_way(store: Store, outside: Outside) -> None:
    """T34: the same for a queue's own cap, with two workspaces that have nothing else in common."""
    landed(write(store, PutQueue(QueueSettings(name="mail", concurrency=1))))
    put_workspace(store, "a")
    put_workspace(store, "b")
    add(store, new_item("first", "a", queue="mail"))
    with outside.transaction() as first:
        assert len(outside.claim(first)) == 1
        add(store, new_item("second", "b", queue="mail"), new_item("third", "b"))
        assert ids_of(claim_items(store)) == ["third"]
    assert ids_of(claim_items(store)) == ["first"]


def test_recovery_leaves_an_item_that_another_has_returned_and_that_was_claimed_anew(
    store: Store, outside: Outside, postgres_schema: str
) -> None:
    """T31: both have found the same dead items; by the time the second comes to one of them, it is with somebody who lives."""
    add(store, "a", "b")
    assert ids_of(claim_items(store, seconds=0.001)) == ["a", "b"]
    with outside.transaction() as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"UPDATE {postgres_schema}.items SET fence = 2, lease_until_ms = 4000000000000 WHERE item_id = 'a'")
        recovering: Future[list[str]] = pool.submit(recover, store)
        outside.wait_for(recovering)
        other.commit()
        assert recovering.result(timeout=60) == ["b"]
    assert statuses(store) == {"a": "CLAIMED", "b": "QUEUED"}


@pytest.mark.parametrize("queue", ["default", "mail"], ids=["the only lane", "a queue that was set up"])
def test_item_whose_time_is_moved_while_it_is_being_claimed_waits_for_it(
    store: Store, outside: Outside, postgres_schema: str, queue: str
) -> None:
    """As the next request of its debounce name does."""
    if queue != "default":
        landed(write(store, PutQueue(QueueSettings(name=queue))))
    add(store, new_item("a", queue=queue), new_item("b", queue=queue))
    with outside.transaction() as other, ThreadPoolExecutor(1) as pool:
        other.execute(f"UPDATE {postgres_schema}.items SET run_at_ms = 4000000000000, is_ready = false WHERE item_id = 'a'")
        claim: Future[list[Claimed]] = pool.submit(claim_items, store)
        outside.wait_for(claim)
        other.commit()
        assert ids_of(claim.result(timeout=60)) == ["b"]
    assert statuses(store) == {"a": "QUEUED", "b": "CLAIMED"}


@pytest.mark.parametrize(
    "row", ["workspaces WHERE workspace_id = 'acme'", "queues WHERE name = 'mail'"], ids=["workspace", "queue"]
)
def test_returned_start_waits_for_the_claim_under_way_and_holds_no_item(
    store: Store, outside: Outside, postgres_schema: str, row: str
) -> None:
    """The claim goes on to lock items: if one of them were held by who waits for it, neither would ever end."""
    put_workspace(store, "acme", rate_per_second=0.001)
    landed(write(store, PutQueue(QueueSettings(name="mail", rate_per_second=0.001))))
    add(store, *(new_item(name, "acme", queue="mail") for name in "abc"))
    [first] = claim_items(store)
    with outside.transaction() as claim, ThreadPoolExecutor(1) as pool:
        claim.execute(f"SELECT 1 FROM {postgres_schema}.{row} FOR NO KEY UPDATE")
        work: Future[object] = pool.submit(store.write, [CancelItem("b"), ReturnItem("a", first.fence), CancelItem("a")])
        outside.wait_for(work)
        assert not work.done()
        claim.execute(f"SELECT 1 FROM {postgres_schema}.items FOR NO KEY UPDATE NOWAIT")
        claim.commit()
        work.result(timeout=60)
    assert ids_of(claim_items(store)) == ["c"]


SLOW, FAST = Tier(name="slow", rate_per_second=1e-5), Tier(name="fast", rate_per_second=1_000)


@pytest.mark.parametrize(
    "raised",
    [
        PutTier(msgspec.structs.replace(FAST, name="slow")),
        PutWorkspace(Workspace(workspace_id="acme", tier="fast")),
    ],
    ids=["its tier", "its own"],
)
def test_a_rate_that_is_raised_while_a_claim_is_under_way_holds_at_once(store: Store, outside: Outside, raised: Unit) -> None:
    """By the old rate, what the claim takes would put off the next start by more than a day."""
    for unit in (PutTier(FAST), PutTier(SLOW), PutWorkspace(Workspace(workspace_id="acme", tier="slow"))):
        landed(write(store, unit))
    add(store, *(new_item(f"i{number}", "acme") for number in range(2)))
    with outside.transaction() as first, ThreadPoolExecutor(1) as pool:
        assert len(outside.claim(first)) == 1
        work: Future[object] = pool.submit(write, store, raised)
        outside.wait_for(work)
        first.commit()
        work.result(timeout=60)
    ends = monotonic() + 30
    while not (taken := ids_of(claim_items(store))) and monotonic() < ends:
        pass
    assert taken == ["i1"]


@pytest.mark.parametrize(
    ("queue", "unit"),
    [
        ("default", PutQueue(QueueSettings(name="default", is_paused=True))),
        ("mail", PutQueue(QueueSettings(name="mail", is_paused=True))),
        ("default", PutTier(Tier(name="unlimited", concurrency=0))),
    ],
)
def test_who_pauses_a_queue_or_lowers_a_cap_waits_for_claims_under_way(
    open_one: Callable[[], Store], store: Store, outside: Outside, queue: str, unit: Unit
) -> None:
    """Else a queue could be found idle, and drained, a moment before another item of it starts; and more start by the old cap."""
    if queue != "default":
        landed(write(store, PutQueue(QueueSettings(name=queue))))
    add(store, new_item("a", queue=queue))
    other = open_one()
    with outside.transaction() as claiming, ThreadPoolExecutor(1) as pool:
        assert len(outside.run_claim_statement(claiming)) == 1
        pausing: Future[object] = pool.submit(write, other, unit)
        outside.wait_for(pausing)
        assert not pausing.done()
        claiming.commit()
        pausing.result(timeout=60)
    assert statuses(other) == {"a": "CLAIMED"}


@pytest.mark.parametrize("cap", [1, 7])
def test_cap_holds_at_every_instant_with_claimers_in_many_processes(open_one: Callable[[], Store], store: Store, cap: int) -> None:
    """T34: eight sessions; each looks at the rows while it holds its item."""
    put_workspace(store, "acme", concurrency=cap)
    items = 64
    add(store, *(new_item(workspace="acme") for _ in range(items)))
    left, worst = threading.Semaphore(items), list[int]()

    def work(own: Store, name: str) -> None:
        while left.acquire(blocking=False):
            while not (taken := claim_items(own, 1, holder=name)):
                pass
            worst.append(used(own, "acme"))
            landed(write(own, ItemMark(taken[0].item_id, "COMPLETED", taken[0].fence)))

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, open_one(), f"d{number}") for number in range(8)]:
            done.result(timeout=60)
    assert max(worst) <= cap
    assert set(statuses(store, "acme").values()) == {"COMPLETED"}


def test_every_item_goes_to_exactly_one_claimer_of_many_processes(open_one: Callable[[], Store], store: Store) -> None:
    """T27: no scheduler lock; claims of all sizes side by side."""
    for number in range(6):
        put_workspace(store, f"w{number}")
    names = add(store, *(new_item(workspace=f"w{number % 6}") for number in range(600)))
    taken: list[str] = []

    def work(own: Store, limit: int) -> None:
        while len(taken) < len(names):
            taken.extend(ids_of(claim_items(own, limit)))

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, open_one(), 1 + 5 * number) for number in range(6)]:
            done.result(timeout=60)
    assert sorted(taken) == sorted(names)


@pytest.mark.parametrize("fields", [{"key": "k"}, {"singleton": "s"}, {"debounce": "d", "delay_ms": 60_000}])
def test_one_name_asked_for_by_many_processes_is_one_item(
    open_one: Callable[[], Store], store: Store, fields: dict[str, object]
) -> None:
    """T39: whoever comes second is told of the first one's item."""
    stores = [open_one() for _ in range(6)]
    gate = threading.Barrier(6)

    def ask(own: Store, number: int) -> Enqueued:
        gate.wait(60)
        [answer] = added(own, new_item(f"i{number}", **fields))
        assert isinstance(answer, Enqueued)
        return answer

    with ThreadPoolExecutor(6) as pool:
        got = [done.result(timeout=60) for done in [pool.submit(ask, own, number) for number, own in enumerate(stores)]]
    assert sum(answer.is_new for answer in got) == 1
    assert {answer.item_id for answer in got} == set(statuses(store))


def test_depth_holds_with_many_processes(open_one: Callable[[], Store], store: Store) -> None:
    put_workspace(store, "acme", queue_depth=20)
    stores = [open_one() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(added, own, *(new_item(workspace="acme") for _ in range(10))) for own in stores]:
            done.result(timeout=60)
    assert len(statuses(store, "acme")) == 20


def test_group_of_every_kind_of_unit_is_one_transaction_in_order(store: Store) -> None:
    put_workspace(store, "acme", concurrency=1)
    add(store, new_item("a", "acme"), new_item("b", "acme"))
    creation = SampleExecution(store, "of-a").creation(
        mark=ItemMark("a", "COMPLETED"), items=(new_item("child", "acme"),), ops=(put("k"),)
    )
    claim = ClaimItems("d", 60, 5)
    wider = PutTier(Tier(name="acme", concurrency=9))
    first, second, made, third, asked, _, last = store.write(
        [claim, claim, creation, claim, Enqueue((new_item("c", "acme"),)), wider, claim]
    )
    assert isinstance(made, Written)
    assert [ids_of(answers(outcome)) for outcome in (first, second, third, last)] == [["a"], [], ["b"], ["child", "c"]]
    assert [answer.is_new for answer in answers(asked)] == [True]


def random_group(draw: random.Random, store: Store, held: list[Claimed]) -> list[Unit]:
    """Units as several callers of one process would send them at the same moment."""
    units: list[Unit] = []
    for _ in range(draw.randint(1, 5)):
        kind = draw.choice(["enqueue", "claim", "end", "end", "recover"])
        if kind == "enqueue":
            names = {name: draw.choice([None, None, "x", "y"]) for name in ("key", "singleton", "debounce")}
            units.append(Enqueue((new_item(workspace=draw.choice("abc"), queue=draw.choice(["mail", "bulk"]), **names),)))
        elif kind == "claim":
            units.append(ClaimItems("d", 600, draw.randint(1, 4)))
        elif kind == "recover":
            units.append(RecoverItems(5))
        elif held:
            item = held.pop()
            mark, child = ItemMark(item.item_id, "COMPLETED", item.fence), new_item(workspace=draw.choice("abc"))
            commit = SampleExecution(store, item.execution_id).creation(mark=mark, items=(child,))
            units.append(draw.choice([commit, ReturnItem(item.item_id, item.fence), CancelItem(item.item_id)]))
    return units


def test_groups_of_every_kind_from_many_processes_get_along(open_one: Callable[[], Store], store: Store) -> None:
    """T34, T35: nobody is told to try again later, no deadlock stands in the way, and no cap is passed."""
    for name, cap, rate in (("a", 1, None), ("b", 3, 5_000), ("c", None, 5_000)):
        put_workspace(store, name, concurrency=cap, queue_depth=30, rate_per_second=rate)
    landed(write(store, PutQueue(QueueSettings(name="mail", concurrency=2, rate_per_second=5_000))))
    landed(write(store, PutQueue(QueueSettings(name="bulk", rate_per_second=5_000))))
    ended, greatest = threading.Event(), Counter[str]()

    def work(own: Store, seed: int) -> None:
        draw, held = random.Random(seed), list[Claimed]()
        for _ in range(30):
            units = random_group(draw, own, held)
            outcomes = own.write(units) if units else []
            held += [
                item
                for outcome in outcomes
                if isinstance(outcome, Written)
                for item in outcome.answers
                if isinstance(item, Claimed)
            ]

    def watch(own: Store) -> None:
        while not ended.is_set():
            for lane in own.lanes():
                greatest[lane.workspace_id] = max(greatest[lane.workspace_id], used(own, lane.workspace_id))

    with ThreadPoolExecutor(5) as pool:
        watching = pool.submit(watch, open_one())
        for done in [pool.submit(work, open_one(), seed) for seed in range(4)]:
            done.result(timeout=120)
        ended.set()
        watching.result(timeout=60)
    assert greatest["a"] <= 1
    assert greatest["b"] <= 3
    assert sum(item.queue == "mail" for name in ("CLAIMED", "DISPATCHED") for item in store.items(ItemQuery(status=name))) <= 2


# So long that no index holds it, and nothing in it repeats, so that the server cannot make it shorter.
_LONG = "".join(sha256(bytes([number])).hexdigest() for number in range(120))


@pytest.mark.parametrize("key", ["a\0b", "\ud800", _LONG], ids=["NUL", "surrogate", "long"])
def test_name_that_cannot_be_stored_is_refused_alone(store: Store, key: str) -> None:
    """Names are checked long before; but if one comes through, it must not take its group with it."""
    good, bad = Enqueue((new_item("good"),)), Enqueue((new_item("bad", key=key),))
    first, second, third = store.write([good, bad, Enqueue((new_item("last"),))])
    assert isinstance(second, ValidationFailed)
    assert isinstance(first, Written)
    assert isinstance(third, Written)
    assert list(statuses(store)) == ["good", "last"]


STATISTICS = pytest.mark.parametrize("statistics", ["", "ANALYZE", "VACUUM ANALYZE"], ids=["none", "analyzed", "vacuumed"])


@STATISTICS
@pytest.mark.parametrize("few", [0, 60])
def test_claim_reads_few_rows_whatever_waits(store: Store, outside: Outside, few: int, statistics: str) -> None:
    """T36: a noisy workspace at its cap with very much waiting, quiet ones beside it; no table is read from end to end.

    Nor if the server's statistics are of a time when little or nothing was waiting.
    """
    put_workspace(store, "noisy", concurrency=3)
    add(store, *(new_item(workspace="noisy", priority=9, workflow_id=f"w{number % 2}") for number in range(few)))
    outside.gather_statistics(statistics)
    add(store, *(new_item(workspace="noisy", priority=9, workflow_id=f"w{number % 2}") for number in range(20_000)))
    for number in range(20):
        put_workspace(store, f"quiet-{number}", concurrency=5)
        add(store, *(new_item(workspace=f"quiet-{number}") for _ in range(5)))
    landed(write(store, PutQueue(QueueSettings(name="default", concurrency=1_000))))
    with outside.transaction() as first:
        taken = outside.claim(first, 50)
        assert {row[1] for row in taken} == {"noisy", *(f"quiet-{number}" for number in range(20))}
        scans, fetched = outside.reads(first)
        assert scans == 0
        assert fetched < 1_000
    with outside.transaction() as second:
        outside.claim(second, 1)
        scans, fetched = outside.reads(second)
        assert (scans, fetched < 200) == (0, True)


@STATISTICS
def test_claim_that_was_planned_for_a_small_table_goes_by_indexes_when_it_is_large(
    store: Store, outside: Outside, statistics: str
) -> None:
    """T36: a session keeps its plans, and the table's size at that time with them."""
    put_workspace(store, "noisy", concurrency=2)
    add(store, *(new_item(workspace="noisy") for _ in range(5)))
    outside.gather_statistics(statistics)
    with outside.transaction() as session:
        for _ in range(8):
            outside.claim(session)
            session.rollback()
        add(store, *(new_item(workspace="noisy") for _ in range(20_000)))
        assert len(outside.claim(session)) == 2
        scans, fetched = outside.reads(session)
        assert (scans, fetched < 200) == (0, True)


def test_claim_says_nothing_of_what_it_passes_over_when_all_is_full(store: Store, outside: Outside) -> None:
    """T36: asking in vain costs next to nothing, too."""
    put_workspace(store, "noisy", concurrency=1)
    add(store, *(new_item(workspace="noisy") for _ in range(5_000)))
    claim_items(store)
    with outside.transaction() as again:
        assert outside.claim(again, 100) == []
        scans, fetched = outside.reads(again)
        assert (scans, fetched < 50) == (0, True)
