"""A vending machine: it takes coins, gives what is chosen and paid for, and gives money back, in whatever order people press.

    python examples/vending_machine.py [--engine temporal]

Shows: a deferred choice (the first of several signals decides what happens next), a loop around it, variables, and a timeout that
ends the wait. The machine may be switched off at any moment: its credit is in the store.
"""

from __future__ import annotations

from time import monotonic, sleep

from stepwell import Run, Status, Stepwell, step
from stepwell.demo.engines import on_engine
from stepwell.flow import Node, call, choice, deferred, define, loop, otherwise, sequence, set_variables, when

PRICES = {"tea": 150, "soup": 250}


@step
def price_of(product: str) -> int | None:
    """What something costs; None if the machine does not have it."""
    return PRICES.get(product)


@step
def show(text: str) -> None:
    print(f"   [{text}]")


@step
def drop(product: str) -> str:
    print(f"   * {product} *")
    return product


@step
def give_back(cents: int) -> int:
    print(f"   {cents} given back")
    return cents


def money_back(name: str) -> Node:
    """Give the credit back, and be done."""
    return sequence(
        call(give_back, "{{ variables.credit }}", name=name),
        set_variables({"credit": 0, "is_over": True}, name=f"{name}-done"),
    )


insert = sequence(
    set_variables({"credit": "{{ variables.credit + item }}"}),
    call(show, "credit {{ variables.credit }}", name="show_credit"),
)
choose = sequence(
    call(price_of, "{{ item }}"),
    choice(
        when("steps.price_of.output is null", call(show, "no {{ item }} here", name="show_none")),
        when("steps.price_of.output > variables.credit", call(show, "{{ steps.price_of.output }}, please", name="show_price")),
        otherwise(
            call(drop, "{{ item }}"),
            set_variables({"credit": "{{ variables.credit - steps.price_of.output }}"}, name="pay"),
        ),
    ),
)
vending_machine = define(
    "vending-machine",
    loop(
        deferred(
            {"coin": insert, "choose": choose, "back": money_back("button")},
            name="buttons",
            timeout="2s",  # somebody walked away; minutes, in real life
            on_timeout=money_back("forgotten"),
        ),
        until="variables.is_over",
        max_iterations=1000,
        collect="none",
        name="customer",
    ),
    variables={"credit": 0, "is_over": False},
    output="{{ variables.credit }}",
)


def press(run: Run, turn: int, name: str, value: str | int | None = None) -> None:
    """Do something at the machine, once it has dealt with what was done before."""
    ends = monotonic() + 30
    while not any(offer.step == f"buttons[{turn}]" for offer in run.progress().offers):
        if run.status() == Status.COMPLETED or monotonic() > ends:
            raise TimeoutError("the machine waits for nobody")
        sleep(0.01)
    print(name if value is None else f"{name} {value}")
    run.signal(name, value)


def main() -> None:
    pressed = (("coin", 100), ("choose", "tea"), ("coin", 100), ("choose", "gold"), ("choose", "tea"), ("back", None))
    with Stepwell() as well, on_engine(well):
        print("somebody is thirsty")
        run = well.start(vending_machine)
        for turn, (name, value) in enumerate(pressed):
            press(run, turn, name, value)
        print(f"=> credit {run.result(timeout=30)}")
        print("somebody else puts in a coin and walks away")
        run = well.start(vending_machine)
        press(run, 0, "coin", 50)
        print(f"=> credit {run.result(timeout=30)}")


if __name__ == "__main__":
    main()
