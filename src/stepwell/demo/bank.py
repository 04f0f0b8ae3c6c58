"""The work that is killed: a bank that moves money between two accounts, one commit for each transfer.

``python -m stepwell.demo.bank URL FIRST COUNT POINT`` makes transfers and says so after each one; in the one after these it stops
at a fault point, in the middle of the commit, until it is killed.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from stepwell.app import Stepwell
from stepwell.fault_points import armed
from stepwell.model.receipt import Receipt
from stepwell.model.scope import Scope
from stepwell.model.value import Value

__all__ = ["BANK", "LEDGER", "OPENING", "accounts_after", "commit_id", "transfer"]

LEDGER = "ledger"
"""The execution."""
BANK = Scope.custom("bank")
"""Scoped state that changes in the same commits."""
OPENING = {"alice": 1_000, "bob": 1_000}


def amount_of(number: int) -> int:
    """What is moved from Alice to Bob in a transfer; negative: back."""
    amount = number * 37 % 90 + 10
    return amount if number % 2 else -amount


def accounts_after(number: int) -> dict[str, int]:
    """The accounts after so many transfers, worked out without a store."""
    moved = sum(amount_of(each) for each in range(1, number + 1))
    return {"alice": OPENING["alice"] - moved, "bob": OPENING["bob"] + moved}


def commit_id(number: int) -> str:
    """The id of a transfer's commit: chosen by us, so that it can be looked up whatever happens."""
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
        sys.stdin.read()  # until we are killed; if our parent is gone, this ends
        os._exit(1)


def main(url: str, first: int, count: int, point: str) -> None:
    """Make ``count`` transfers from number ``first`` on, then stop in the middle of one more."""
    well = Stepwell(url)
    for number in range(first, first + count):
        print("done", number, transfer(well, number).digest, flush=True)
    with armed(partial(_stop_at, point, first + count)):
        transfer(well, first + count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
