"""The bank demonstration: money moves between two accounts, one commit per transfer, while the process is killed twice.

``python -m stepwell.demo.bank URL FIRST COUNT POINT`` makes transfers and reports each one. In the transfer after them it stops
at a fault point, in the middle of the commit, until it is killed. The parent process then checks every acknowledged transfer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from stepwell.app.blocking import Stepwell
from stepwell.demo.screen import DemoScreen
from stepwell.errors import Corrupted
from stepwell.fault_points import armed
from stepwell.model.receipt import Receipt
from stepwell.model.scope import Scope
from stepwell.model.value import Value
from stepwell.stores.sql_files import read_queries

__all__ = [
    "BANK",
    "LEDGER",
    "OPENING",
    "accounts_after",
    "commit_id",
    "run_demo",
    "transfer",
]


LEDGER = "ledger"
"""The id of the execution."""
BANK = Scope.custom("bank")
"""Scoped state that changes in the same commits."""
OPENING = {"alice": 1_000, "bob": 1_000}


def amount_of(number: int) -> int:
    """Return the amount that a transfer moves from Alice to Bob; negative: from Bob to Alice."""
    amount = number * 37 % 90 + 10
    return amount if number % 2 else -amount


def accounts_after(number: int) -> dict[str, int]:
    """Return the accounts after a number of transfers, computed without a store."""
    moved = sum(amount_of(each) for each in range(1, number + 1))
    return {"alice": OPENING["alice"] - moved, "bob": OPENING["bob"] + moved}


def commit_id(number: int) -> str:
    """Return the id of a transfer's commit, chosen by the caller so that its outcome can be looked up after a crash."""
    return f"transfer-{number}"


def transfer(well: Stepwell, number: int) -> Receipt:
    """Make one transfer: two accounts, a step count and a counter in scoped state change in one commit."""

    def move(accounts: dict[str, Value]) -> dict[str, Value]:
        amount = amount_of(number)
        return {"alice": accounts["alice"] - amount, "bob": accounts["bob"] + amount}

    transaction = well.transaction(LEDGER, commit_id=commit_id(number))
    transaction.update_context(move)
    transaction.increment_step_count()
    transaction.state(BANK).increment("transfers")
    return transaction.commit()


def _stop_at(point: str, number: int, reached: str) -> None:
    if reached == point:
        print("stopped", number, point, flush=True)
        sys.stdin.read()  # blocks until the process is killed, and ends if the parent is gone
        os._exit(1)


def main(url: str, first: int, count: int, point: str) -> None:
    """Make ``count`` transfers from number ``first`` on, then stop in the middle of one more."""
    well = Stepwell(url)
    for number in range(first, first + count):
        print("done", number, transfer(well, number).digest, flush=True)
    with armed(partial(_stop_at, point, first + count)):
        transfer(well, first + count)


_FIRST, _SECOND, _LAST = 40, 20, 20
_EDITED = 17
_PATIENCE_SECONDS = 20


class Killed(NamedTuple):
    """The reports of a child process before it was killed."""

    acknowledged: dict[int, str]
    """The digests of the receipts that it got, by transfer."""
    stopped_in: int
    """The transfer in which it was killed; 0 if it did not reach that."""
    signal: int


def run_demo(screen: DemoScreen, folder: Path) -> int:
    """Run the demonstration in a folder. Return 0 if every check passed."""
    began, file = time.perf_counter(), folder / "well.db"
    url = f"sqlite:///{file}"
    screen.say(screen.paint("bold", "Stepwell: what is left after kill -9 in the middle of a commit"))
    screen.note("one SQLite file, synchronous=FULL; every transfer changes two accounts, a step count and a counter")
    with Stepwell(url) as well:
        well.create(LEDGER, context=OPENING)

    kept = _killed_inside(screen, url)
    kept |= _killed_after(screen, url, first=len(kept) + 1)
    _check_chain(screen, url, kept)
    _vandalise(screen, file, folder / "copy.db")
    _go_on(screen, url)
    return screen.finish(time.perf_counter() - began)


def _killed_inside(screen: DemoScreen, url: str) -> dict[int, str]:
    screen.heading(1, "Killed inside the transaction: the commit's row is written, COMMIT is not")
    killed = _run_and_kill(screen, url, 1, _FIRST, "store.commit_written")
    began = time.perf_counter()
    with Stepwell(url) as well:
        revision = well.load(LEDGER).revision
        screen.note(f"reopened and loaded in {(time.perf_counter() - began) * 1000:.1f} ms")
        screen.check(revision == _FIRST, f"the old state: revision {revision}, the last acknowledged one")
        _check_whole(screen, well, _FIRST)
        lost = well.receipt(LEDGER, commit_id(killed.stopped_in))
        screen.check(lost is None, f"the half-written {commit_id(killed.stopped_in)} left no trace and can be sent again")
    return killed.acknowledged


def _killed_after(screen: DemoScreen, url: str, first: int) -> dict[int, str]:
    screen.heading(2, "Killed right after COMMIT: the commit is on disk, but no receipt was returned")
    killed = _run_and_kill(screen, url, first, _SECOND, "store.committed")
    number = killed.stopped_in
    with Stepwell(url) as well:
        revision = well.load(LEDGER).revision
        screen.check(revision == first + _SECOND, f"the new state: revision {revision}, one more than was acknowledged")
        _check_whole(screen, well, first + _SECOND)
        landed = well.receipt(LEDGER, commit_id(number))
        screen.check(landed is not None, f"looked up by its id, {commit_id(number)} has landed")
        again = transfer(well, number)
        screen.check(again == landed, "sent again, the same commit returns its first receipt")
        screen.check(well.load(LEDGER).context == accounts_after(number), "and the money is not moved twice")
    return killed.acknowledged | ({} if landed is None else {number: landed.digest})


def _run_and_kill(screen: DemoScreen, url: str, first: int, count: int, point: str) -> Killed:
    """Run the bank in a child process until it stops in the middle of a commit, and kill it there."""
    command = [sys.executable, "-m", "stepwell.demo.bank", url, str(first), str(count), point]
    acknowledged: dict[int, str] = {}
    stopped_in = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603 - our own module
        watchdog = threading.Timer(_PATIENCE_SECONDS, child.kill)
        watchdog.start()
        for line in child.stdout or ():
            word, number, detail = line.split()
            if word == "stopped":
                stopped_in = int(number)
                child.kill()
                break
            acknowledged[int(number)] = detail
            screen.progress("transfers acknowledged", len(acknowledged), count)
        child.wait()
        watchdog.cancel()
    killed = Killed(acknowledged, stopped_in, -child.returncode)
    screen.check(stopped_in > 0 and killed.signal == 9, f"child {child.pid} got SIGKILL at {point}, in transfer {stopped_in}")
    return killed


def _check_whole(screen: DemoScreen, well: Stepwell, number: int) -> None:
    """Check that everything a transfer changes is at the same transfer."""
    state, counter = well.load(LEDGER), well.state.at(BANK).get("transfers")
    accounts = state.context
    is_whole = accounts == accounts_after(number) and state.step_count == counter == number
    screen.check(
        is_whole,
        f"nothing in between: alice {accounts['alice']:,} + bob {accounts['bob']:,} = {sum(accounts.values()):,}, "
        f"{state.step_count} steps, counter {counter}",
    )


def _check_chain(screen: DemoScreen, url: str, kept: dict[int, str]) -> None:
    screen.heading(3, "The receipts: a chain of SHA-256, each naming the one before and the state before and after")
    with Stepwell(url) as well:
        receipts, result = well.receipts(LEDGER), well.verify(LEDGER)
    for receipt in receipts[-3:]:
        links = f"previous {receipt.previous[:8]}  state {receipt.before[:8]} -> {receipt.after[:8]}"
        screen.say(f"   {screen.paint('yellow', f'revision {receipt.revision:>3}')}  receipt {receipt.digest[:8]}  {links}")
    screen.check(result.ok and result.receipts == len(receipts), f"{result.receipts} receipts walked: every link and state adds up")
    stored = {receipt.revision: receipt.digest for receipt in receipts[1:]}
    screen.check(stored == kept, f"all {len(kept)} receipts that were acknowledged are in it, and no others")


def _vandalise(screen: DemoScreen, file: Path, copy: Path) -> None:
    screen.heading(4, f"Someone edits one byte of revision {_EDITED}, in a copy of the file")
    shutil.copy(file, copy)
    with Stepwell(f"sqlite:///{copy}") as well:
        body = well.receipts(LEDGER, after=_EDITED - 1, limit=1)[0].body
    edited = body.replace(b'"alice":', b'"alicf":', 1)
    database: Any = apsw.Connection(str(copy))
    database.execute(read_queries("stepwell.demo", "vandal.sql")["edit_mutations"], (body, edited))
    database.close()
    with Stepwell(f"sqlite:///{copy}") as well:
        result = well.verify(LEDGER)
        screen.note(f"verify: {'; '.join(result.problems)}")
        found = any(f"revision {_EDITED} " in problem for problem in result.problems)
        screen.check(not result.ok and found, "verify finds it and names the revision")
        screen.check(_is_refused(well), "loading refuses it: this execution is quarantined, others would not be")


def _is_refused(well: Stepwell) -> bool:
    try:
        well.load(LEDGER)
    except Corrupted:
        return True
    return False


def _go_on(screen: DemoScreen, url: str) -> None:
    screen.heading(5, "The execution continues where it stopped")
    with Stepwell(url) as well:
        stopped = well.load(LEDGER).revision
        for number in range(1, _LAST + 1):
            transfer(well, stopped + number)
            screen.progress("transfers acknowledged", number, _LAST)
        _check_whole(screen, well, stopped + _LAST)
        past = well.load(LEDGER, at=_EDITED).context
        screen.check(past == accounts_after(_EDITED), f"history: at revision {_EDITED} alice had {past['alice']:,}")
        result = well.verify(LEDGER)
        screen.check(result.ok, f"{result.receipts} receipts verified, head {result.head[:16]}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
