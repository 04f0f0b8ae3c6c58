"""A vending machine: it takes coins, gives what is chosen and paid for, and gives money back, in whatever order people press.

    python examples/vending_machine.py

Shows: a deferred choice (the first of several signals decides what happens next), a loop around it, variables, and a timeout that
ends the wait. The machine may be switched off at any moment: its credit is in the store.
"""

from __future__ import annotations

from stepwell import Run, Stepwell, step
from stepwell.flow import call, choice, deferred, define, loop, otherwise, sequence, set_variables, when

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


def money_back(name: str):
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
        when(
            "steps.price_of.output > variables.credit", call(show, "{{ item }} is {{ steps.price_of.output }}", name="show_price")
        ),
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
            timeout="1s",  # somebody walked away; minutes, in real life
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


def press(run: Run[object], name: str, value: str | int | None = None) -> None:
    print(f"{name}{'' if value is None else f' {value}'}")
    run.signal(name, value)


def main() -> None:
    with Stepwell() as well:
        thirsty = well.start(vending_machine)
        for name, value in (("coin", 100), ("choose", "tea"), ("coin", 100), ("choose", "gold"), ("choose", "tea"), ("back", None)):
            press(thirsty, name, value)
        print(f"=> {thirsty.status() if thirsty.result(timeout=30) else 'no credit is left'}")
        print("somebody else puts in a coin and walks away")
        absent = well.start(vending_machine)
        press(absent, "coin", 50)
        absent.result(timeout=30)
        print("=> the machine is free again")


if __name__ == "__main__":
    main()
