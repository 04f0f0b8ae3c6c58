"""A nightly import: 500 rows, 50 at a time; a row that comes late is fetched again, a bad one is left out and reported.

    python examples/nightly_import.py [--engine temporal]

Shows: multiple instances with bounded concurrency, retries, failures that are passed over, state that lands with the step that
wrote it: every row is counted once, whatever crashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import stepwell
from stepwell import Retry, Scope, Stepwell, step
from stepwell.demo.engines import on_engine
from stepwell.flow import call, define, each

ROWS = 500
TOTALS = Scope.custom("nightly-import")


@dataclass(frozen=True)
class Row:
    number: int
    cents: int


class BadRow(ValueError):
    """The row cannot be read."""


@step
def list_rows(count: int) -> list[int]:
    return list(range(1, count + 1))


@step(retry=Retry(attempts=3, first_seconds=0.2))
async def fetch(number: int) -> str:
    """The source is slow with some rows: they come at the second attempt."""
    if number % 50 == 0 and stepwell.current().attempt == 1:
        raise ConnectionError(f"row {number} takes too long")
    return f"{number};{number * 7 if number % 125 else 'n/a'}"


@step(retry=Retry(non_retryable=("BadRow",)))
async def store(line: str) -> Row:
    """Read a row and add it up. The sums land in the same commit as the row's record."""
    number, _, cents = line.partition(";")
    if not cents.isdecimal():
        raise BadRow(f"row {number} has no price")
    totals = stepwell.current().state(TOTALS)
    totals.increment("rows")
    totals.increment("cents", int(cents))
    return Row(int(number), int(cents))


@dataclass(frozen=True)
class Report:
    imported: int
    left_out: int


@step
def report(rows: list[Row | None]) -> Report:
    imported = sum(1 for row in rows if row is not None)
    return Report(imported, len(rows) - imported)


nightly_import = define(
    "nightly-import",
    call(list_rows),
    each(
        call(fetch, "{{ item }}"),
        call(store, on_error="continue"),
        items="{{ steps.list_rows.output }}",
        concurrency=50,
        name="rows",
    ),
    call(report, {"rows": "{{ steps.rows.output }}"}),
    output={"report": "{{ steps.report.output }}", "rows_in_store": "{{ state.custom.nightly-import.rows }}"},
    input_schema={"type": "integer", "minimum": 1, "maximum": 1000},
)


def main() -> None:
    with Stepwell() as well, on_engine(well):
        totals = well.state.custom("nightly-import")
        totals.clear()
        began = perf_counter()
        run = well.start(nightly_import, ROWS)
        print(f"{ROWS} rows, 50 at a time")
        print(f"=> {run.result(timeout=60)}")
        print(f"   sums in the store: {totals.get('rows')} rows, {totals.get('cents'):,} cents")
        steps = run.steps()
        for each_step in steps:
            if each_step.status == "FAILED":
                print(f"   left out: {each_step.name}: {each_step.attempts[-1].error.message}")
        print(f"   {len(steps):,} records in {len(run.receipts()):,} commits")
        print(f"   {perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
