"""The command line: declared workflows, from a file, a module and the store."""

from __future__ import annotations

import signal

import pytest
from tests.support.command_line import Shell, program, shell

__all__ = ["shell"]

ORDER = """
name: order
do:
  - parallel:
      money: {step: charge, with: {cents: "{{ trigger.input.cents }}"}}
      goods: {step: reserve, with: {item: "{{ trigger.input.item }}"}}
  - loop: {step: reserve, name: again, with: {item: "item {{ index }}"}}
    count: 2
output: "{{ steps.charge.output.paid }}"
"""


@pytest.fixture
def orders(shell: Shell) -> Shell:
    """A shell with a definition, too."""
    shell.write("order.yaml", ORDER)
    return shell


def test_definition_is_run_with_the_steps_of_a_module(orders: Shell):
    done = orders("run", "order.yaml", "-m", "shop", "--id", "a", "-i", '{"item": "lamp", "cents": 5}')
    assert (done.code, done.out) == (0, "5\n"), done.err
    steps = orders("show", "a", "--json").json["steps"]
    assert {"charge", "reserve", "again[0]", "again[1]"} <= steps.keys()
    assert orders("verify", "a").code == 0


def test_definition_that_was_run_is_in_the_store_and_found_by_its_name(orders: Shell):
    orders("run", "order.yaml", "-m", "shop", "-i", '{"item": "lamp", "cents": 5}')
    assert orders("run", "order", "-m", "shop", "-i", '{"item": "lamp", "cents": 6}', "--json").json["output"] == 6
    assert orders("draw", "order", "-f", "mermaid").out.startswith("flowchart TD")


def test_faulty_definition_is_not_started_and_every_fault_is_told(shell: Shell):
    shell.write("faulty.yaml", "name: x\ndo:\n  - {step: a, retry: {attempts: 0}}\n  - {loop: b, until: true}\n")
    done = shell("run", "faulty.yaml")
    assert done.code == 5
    assert "faulty.yaml:3:" in done.err
    assert "faulty.yaml:4:" in done.err
    assert not (shell.folder / "well.db").exists()


def test_run_without_its_steps_says_what_is_missing(orders: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stepwell.flow.function._steps", {})
    done = orders("run", "order.yaml", "-i", '{"item": "lamp", "cents": 5}', "--timeout", "0.5")
    assert done.code == 124
    assert "no step 'charge' is registered" in done.err


def test_question_to_people_is_shown_with_the_command_that_answers_it(shell: Shell):
    shell.write(
        "ask.yaml", "name: ask\ndo:\n  - {approval: Large order, approvers: [ann, bob]}\n  - {step: reserve, with: {item: x}}\n"
    )
    assert shell("run", "ask.yaml", "-m", "shop", "--id", "a", "--timeout", "0.5").code == 124
    shown = shell("show", "a").out
    assert """approval approval (Large order) by ann, bob: stepwell signal a approval '{"is_approved":true,"by":"ann"}'""" in shown
    assert shell("signal", "a", "approval", '{"is_approved":true,"by":"ann"}').code == 0
    assert shell("run", "ask", "-m", "shop", "--id", "a").json == "reserved x"


def test_definitions_are_put_listed_shown_paused_and_activated(orders: Shell):
    assert orders("workflow", "put", "order.yaml", "--json").json == [{"name": "order", "version": 1}]
    assert orders("workflow", "list").out == "order\t1\tACTIVE\t[1]\n"
    assert orders("workflow", "list", "--json").lines[0]["name"] == "order"
    orders.write("again.yaml", orders("workflow", "show", "order").out)
    orders.write("again.json", orders("workflow", "show", "order", "--json").out)
    assert orders("workflow", "put", "again.yaml", "again.json").code == 0
    assert orders("workflow", "pause", "order", "--json").json == {"name": "order", "status": "PAUSED"}
    assert orders("start", "order", "-m", "shop", "-i", '{"item": "lamp", "cents": 5}').code != 0
    assert orders("workflow", "activate", "order").code == 0
    assert orders("start", "order", "-m", "shop", "-i", '{"item": "lamp", "cents": 5}').code == 0


def test_definitions_that_cannot_be_kept_are_refused(orders: Shell):
    orders("workflow", "put", "order.yaml")
    orders.write("other.yaml", ORDER.replace("count: 2", "count: 3"))
    orders.write("faulty.yaml", "name: x\n")
    assert orders("workflow", "put", "other.yaml").code == 4, "the same version with another body"
    assert orders("workflow", "put", "faulty.yaml").code == 5
    assert orders("workflow", "put", "shop.py").code == 5
    assert orders("workflow", "show", "order", "--version", "7").code == 3
    for name in ("show", "pause", "activate"):
        assert orders("workflow", name, "nothing").code == 3


def test_worker_puts_definitions_into_the_store_and_runs_them(orders: Shell):
    with program(orders, "worker", "shop.py", "order.yaml", "--json") as worker:
        assert '"order"' in worker.stdout.readline()
        assert orders("start", "order", "--id", "a", "-i", '{"item": "lamp", "cents": 7}').code == 0
        assert orders("watch", "a", "--timeout", "20").json == 7
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert worker.returncode == 0
