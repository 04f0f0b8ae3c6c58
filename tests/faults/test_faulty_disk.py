"""T09: SQLite on a disk that fails: a typed error and no ack, or an unknown commit; and all is well once the disk is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest
from tests.faults.callers import Blocking
from tests.faults.crash_case import ORDER, Picture, follow_up, prepare, world
from tests.faults.hooks import Boom, at
from tests.faults.invariants import check_chain
from tests.faults.system_calls import DISK_FULL, IO_ERROR, SystemCalls

import stepwell.stores.sqlite.connection
from stepwell import CommitUnknown, Receipt, StoreFull, StoreUnavailable
from stepwell.fault_points import armed
from stepwell.testing.store_access import store_under


@dataclass(frozen=True)
class Failure:
    """One way in which a system call goes wrong."""

    call: str
    error: int
    is_torn: bool = False
    is_persistent: bool = False


_ONCE = {
    "EIO on write": Failure("pwrite64", IO_ERROR),
    "EIO after a short write": Failure("pwrite64", IO_ERROR, is_torn=True),
    "disk full": Failure("pwrite64", DISK_FULL),
    "disk full after a short write": Failure("pwrite64", DISK_FULL, is_torn=True),
    "EIO on truncate": Failure("ftruncate", IO_ERROR),
    "EIO on open": Failure("open", IO_ERROR),
    "EIO on read": Failure("pread64", IO_ERROR),
}
_ALWAYS = {
    f"{name}, from then on": Failure(each.call, each.error, each.is_torn, is_persistent=True) for name, each in _ONCE.items()
}


@pytest.fixture
def calls() -> Iterator[SystemCalls]:
    calls = SystemCalls()
    yield calls
    calls.restore()


@pytest.fixture(params=[*_ONCE, *_ALWAYS])
def failure(request: pytest.FixtureRequest) -> Failure:
    return {**_ONCE, **_ALWAYS}[request.param]


class Bench:
    """Copies of a prepared database, one for each try."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, 0
        caller = Blocking(f"sqlite:///{folder}/template.db")
        prepare(caller)
        caller.close()

    def renew(self, *, is_empty: bool = False) -> None:
        """Go on with a new copy of the prepared file, or with none."""
        self._files += 1
        self.path = self._folder / f"{self._files}.db"
        if not is_empty:
            shutil.copy(self._folder / "template.db", self.path)

    def open(self) -> Blocking:
        return Blocking(f"sqlite:///{self.path}")

    def check_integrity(self) -> None:
        assert apsw.Connection(str(self.path)).execute("PRAGMA integrity_check").get == "ok"


@pytest.fixture
def bench(quick_path: Path) -> Bench:
    return Bench(quick_path)


@pytest.fixture(params=[False, True], ids=["log only", "checkpoint each time"])
def is_checkpointing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether every commit also copies the log back into the file, so that failures fall there, too."""
    if request.param:
        monkeypatch.setattr(stepwell.stores.sqlite.connection, "_CHECKPOINT_PAGES", 1)
    return request.param


def each_number(calls: SystemCalls, failure: Failure, attempt: Callable[[Callable[[], None]], None]) -> int:
    """Let the first call fail, then the second, and so on, until an attempt makes fewer; how many failed.

    The attempt is given a function that arms the failure.
    """
    number = 0
    while True:
        number += 1

        def arm(number: int = number) -> None:
            calls.fail(failure.call, number, failure.error, is_persistent=failure.is_persistent, is_torn=failure.is_torn)

        attempt(arm)
        if not calls.was_hit:
            return number - 1


def test_commit_on_a_failing_disk_is_refused_or_unknown_and_its_retry_lands(
    bench: Bench, calls: SystemCalls, failure: Failure, is_checkpointing: bool, pictures: dict[str, list[Picture]]
) -> None:
    """T09: for every n that a commit reaches; I1 to I3; the same store object goes on."""
    case = pictures["sqlite"][-1]

    def attempt(arm: Callable[[], None]) -> None:
        bench.renew()
        caller = bench.open()
        commit = case.act.begin(caller)
        arm()
        try:
            told: object = commit()
        except (StoreUnavailable, CommitUnknown) as error:
            told = error
        calls.heal()
        if failure.error == DISK_FULL:
            assert isinstance(told, Receipt | StoreFull)
        check_told(caller, case, told)
        check_goes_on(bench, caller, case)

    hits = each_number(calls, failure, attempt)
    is_call_made = is_checkpointing or failure.call != "ftruncate"  # only a checkpoint truncates
    assert (hits > 0) is is_call_made


def check_told(caller: Blocking, case: Picture, told: object) -> None:
    """The store agrees with the caller's answer: an ack is kept, a refusal wrote nothing, an unknown is one of both."""
    seen, found = world(caller), caller.receipt(case.act.execution_id, case.act.commit_id)
    assert seen in (case.old, case.new)
    assert found == (case.receipt if seen == case.new else None)
    if isinstance(told, StoreUnavailable):
        assert seen == case.old
    elif not isinstance(told, CommitUnknown):
        assert (told, seen) == (case.receipt, case.new)


def check_goes_on(bench: Bench, caller: Blocking, case: Picture) -> None:
    """The retry lands once; the same store works, and so does one that opens the file afresh."""
    assert case.act.begin(caller)() == case.receipt
    assert world(caller) == case.new
    caller.begin(case.act.execution_id, None, follow_up).commit()
    check_chain(caller, case.act.execution_id)
    after = world(caller)
    caller.close()
    again = bench.open()
    assert world(again) == after
    again.close()
    bench.check_integrity()


@pytest.mark.parametrize("name", _ONCE)
@pytest.mark.parametrize("is_empty", [True, False], ids=["new file", "file with history"])
def test_opening_on_a_failing_disk_is_a_typed_error_and_works_once_the_disk_does(
    bench: Bench, calls: SystemCalls, name: str, is_empty: bool
) -> None:
    """T09: for every n; nothing of a half-made file is in the way."""
    failure = _ONCE[name]

    def attempt(arm: Callable[[], None]) -> None:
        bench.renew(is_empty=is_empty)
        arm()
        try:
            bench.open().close()
        except StoreUnavailable:
            assert calls.was_hit
        calls.heal()
        caller = bench.open()
        if is_empty:
            prepare(caller)
        check_chain(caller, ORDER)
        caller.close()
        bench.check_integrity()

    assert each_number(calls, failure, attempt)


def test_closing_on_a_failing_disk_loses_nothing(
    bench: Bench, calls: SystemCalls, failure: Failure, pictures: dict[str, list[Picture]]
) -> None:
    """T09: the log is copied back when the last one closes; if that fails, it is still there for the next."""
    case = pictures["sqlite"][-1]

    def attempt(arm: Callable[[], None]) -> None:
        bench.renew()
        caller = bench.open()
        assert case.act.begin(caller)() == case.receipt
        arm()
        caller.close()
        calls.heal()
        again = bench.open()
        assert world(again) == case.new
        check_chain(again, ORDER)
        again.close()
        bench.check_integrity()

    each_number(calls, failure, attempt)


def test_a_full_disk_still_serves_reads(bench: Bench, calls: SystemCalls, pictures: dict[str, list[Picture]]) -> None:
    """T09: what is stored can be read while nothing can be written, and writing resumes without reopening."""
    case = pictures["sqlite"][-1]
    bench.renew()
    caller = bench.open()
    commit = case.act.begin(caller)
    calls.fail("pwrite64", 1, DISK_FULL, is_persistent=True)
    for _ in range(3):
        with pytest.raises(StoreFull):
            commit()
        assert world(caller) == case.old
        check_chain(caller, ORDER)
    calls.heal()
    assert commit() == case.receipt
    assert world(caller) == case.new
    caller.close()


def test_loading_from_a_failing_disk_is_a_typed_error_and_works_once_the_disk_does(
    bench: Bench, calls: SystemCalls, pictures: dict[str, list[Picture]]
) -> None:
    """T09: EIO on each read of a load; the same store object reads on."""
    case = pictures["sqlite"][-1]

    def attempt(arm: Callable[[], None]) -> None:
        bench.renew()
        caller = bench.open()
        arm()
        try:
            caller.load(ORDER)
        except StoreUnavailable:
            assert calls.was_hit
        calls.heal()
        assert world(caller) == case.old
        check_goes_on(bench, caller, case)

    assert each_number(calls, Failure("pread64", IO_ERROR), attempt)


def test_a_handle_that_cannot_be_rolled_back_is_replaced_once_the_disk_works(
    bench: Bench, calls: SystemCalls, pictures: dict[str, list[Picture]]
) -> None:
    """T09: ROLLBACK fails, and then opening a new handle fails, too; the store object goes on when that works again."""
    case = pictures["sqlite"][-1]
    bench.renew()
    caller = bench.open()
    commit, writer = case.act.begin(caller), store_under(caller.well)._writer

    def refuse_rollback(operation: int, name: str | None, *_: object) -> int:
        is_rollback = (operation, name) == (apsw.SQLITE_TRANSACTION, "ROLLBACK")
        return apsw.SQLITE_DENY if is_rollback else apsw.SQLITE_OK

    def break_handle() -> None:
        writer._connection.authorizer = refuse_rollback
        calls.fail("open", 1, IO_ERROR, is_persistent=True)
        raise Boom

    with armed(at("store.begun", 1, break_handle)), pytest.raises(Boom):
        commit()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            commit()
    calls.heal()
    assert world(caller) == case.old
    assert commit() == case.receipt
    check_goes_on(bench, caller, case)
