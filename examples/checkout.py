"""An order is paid and sent; if a step fails for good, what was done before it is undone, the last one first.

    python examples/checkout.py [--engine temporal]

Shows: a workflow as a function, dataclasses as input and output, retries, ``compensate``, and the record of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import stepwell
from stepwell import ExecutionFailed, Retry, Stepwell, step, workflow
from stepwell.demo.engines import on_engine

STOCK = {"lamp": 3, "bed": 1}
COUNTRIES_WE_SEND_TO = {"CH", "LI"}


@dataclass(frozen=True)
class Order:
    item: str
    cents: int
    country: str


@dataclass(frozen=True)
class Payment:
    key: str
    cents: int


class NotSentThere(ValueError):
    """We do not send to this country."""


@step
async def reserve(item: str) -> str:
    print(f"   reserve {item}")
    if not STOCK.get(item):
        raise LookupError(f"there is no {item}")
    return f"a {item} from the shelf"


@step
async def release(reservation: str) -> None:
    print(f"   release {reservation}")


@step(retry=Retry(attempts=3, first_seconds=0.1))
async def charge(cents: int) -> Payment:
    """The bank does not answer at first. Its key is the same at every attempt, so that nobody pays twice."""
    here = stepwell.current()
    if here.attempt == 1:
        print(f"   charge {cents / 100:.2f}: no answer, so once more")
        raise ConnectionError("the bank does not answer")
    print(f"   charge {cents / 100:.2f}")
    return Payment(here.idempotency_key, cents)


@step
async def refund(payment: Payment) -> None:
    print(f"   refund {payment.cents / 100:.2f}")


@step(retry=Retry(attempts=3, first_seconds=0.1, non_retryable=("NotSentThere",)))
async def send(reservation: str, country: str) -> str:
    print(f"   send {reservation} to {country}")
    if country not in COUNTRIES_WE_SEND_TO:
        raise NotSentThere(f"we do not send to {country}")
    return f"{reservation}, on its way to {country}"


@workflow
async def checkout(order: Order) -> str:
    """Each call is recorded once. What ``compensate`` plans is done only if the run does not end well."""
    reservation = await reserve(order.item)
    stepwell.compensate(release, reservation)
    payment = await charge(order.cents)
    stepwell.compensate(refund, payment)
    return await send(reservation, order.country)


def main() -> None:
    with Stepwell() as well, on_engine(well):
        for order in (Order("lamp", 4200, "CH"), Order("bed", 99_000, "US")):
            print(f"{order.item} to {order.country}")
            run = well.start(checkout, order)
            try:
                print(f"=> {run.result(timeout=30)}")
            except ExecutionFailed as error:
                print(f"=> {error.message}")
            for name, record in run.state().get_all_step_outputs().items():
                print(f"   on record: {name:14} {record.status}")
            print(f"   {len(run.receipts())} receipts, {'all good' if run.verify().ok else 'NOT AS WRITTEN'}")


if __name__ == "__main__":
    main()
