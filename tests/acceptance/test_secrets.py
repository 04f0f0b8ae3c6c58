"""Declared secrets: shown nowhere, whoever declared them."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import Shell, program, shell

import stepwell
from stepwell import ExecutionFailed, RunLogFilter, Scope, StepFailed, Stepwell, step, workflow
from stepwell.flow import call, define, log, script, throw
from stepwell.model.redaction import HIDDEN, Redaction

__all__ = ["shell"]

PASSWORD, CARD, PIN = "hunter-two-and-more", "4111-1111-1111-1111", 48159162


@step(secrets=["card*"])
async def pay_by_card(order: dict[str, Any]) -> str:
    raise ValueError(f"card {order['card_number']} was refused for {order['user']} with {order['password']}, pin {order['pin']}")


@workflow(secrets=["PASSWORD"])
async def place_order(order: dict[str, Any]) -> str:
    return await pay_by_card(order)


ORDER = {"user": "Ann", "password": PASSWORD, "card_number": CARD, "pin": PIN}


def test_values_are_hidden_by_the_names_of_their_keys_at_any_depth() -> None:
    redaction = Redaction(["password", "*_token"])
    value = {"a": [{"Password": 1, "api_TOKEN": [2], "name": "x"}], "tokens": 3}
    assert redaction.value(value) == {"a": [{"Password": HIDDEN, "api_TOKEN": HIDDEN, "name": "x"}], "tokens": 3}
    assert Redaction().value(value) is value
    assert redaction.text("it was hunter2, and 1", {"password": "hunter2", "x_token": 1}) == f"it was {HIDDEN}, and 1"


def test_errors_logs_and_records_have_no_secret_values(file_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Stepwell(file_url, secrets=["pin"]) as well:
        run = well.start(place_order, ORDER, execution_id="one")
        with pytest.raises((ExecutionFailed, StepFailed)) as caught:
            run.result(timeout=20)
        state, steps, receipts = well.load("one"), run.steps(), well.receipts("one")
        shown = well.redact(state.context | {"trigger": state.trigger}, secrets=state.identity.secrets or ())
        drawn = run.draw()
    assert "was refused for Ann" in str(caught.value)
    assert set(state.identity.secrets or ()) >= {"pin", "PASSWORD", "card*"}
    told = [str(caught.value), repr(state.result), repr([each.to_dict() for each in steps]), caplog.text, repr(shown), str(drawn)]
    told.append(repr([each.mutations for each in receipts[1:]]))  # the first has the input, which the run needs
    for text in told:
        for secret in (PASSWORD, CARD, str(PIN)):
            assert secret not in text


@step(name="secrets.pack", secrets=["card*"])
async def pack(order: dict[str, Any]) -> dict[str, Any]:
    stepwell.current().logger.info("packing %s for %s", order["card_number"], order["user"])
    try:
        raise ValueError(f"no paper for {order['password']}")
    except ValueError:
        stepwell.current().logger.exception("packing failed")
    return order


@workflow(name="secrets.parcel", secrets=["PASSWORD"])
async def parcel(order: dict[str, Any]) -> dict[str, Any]:
    stepwell.current().variables["password"] = order["password"]
    return await pack.with_summary(f"{order['card_number']} of {order['user']}")(order)


declared_parcel = define(
    "secrets.declared",
    call(pack, {"order": "{{ trigger.input }}"}, summary="{{ trigger.input.card_number }} of {{ trigger.input.user }}"),
    log("sends {{ trigger.input.pin }}"),
    script("print('script of ' .. input.password) return 1", "{{ trigger.input }}"),
    throw("{{ trigger.input.password }} is not {{ trigger.input.user }}"),
)


def test_no_secret_is_in_logs_summaries_and_messages_of_definitions(
    shell: Shell, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    handler = logging.StreamHandler(told := io.StringIO())
    handler.addFilter(RunLogFilter())
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers, handler])
    with Stepwell(shell.url, secrets=["pin", "password"]) as well:
        assert well.start(parcel, ORDER, execution_id="one").result(timeout=20) == ORDER
        run = well.start(declared_parcel, ORDER, execution_id="two")
        with pytest.raises(ExecutionFailed):
            run.result(timeout=20)
        pictures = [str(well.run(name).draw(form)) for name in ("one", "two") for form in ("svg", "mermaid", "waterfall")]
        assert f"{HIDDEN} of Ann" in repr([each.summary for name in ("one", "two") for each in well.run(name).steps()])
        assert f"{HIDDEN} is not Ann" in repr(well.load("two").result)
    assert f"packing {HIDDEN} for Ann" in caplog.text
    assert f"no paper for {HIDDEN}" in told.getvalue()
    assert (f"sends {HIDDEN}" in caplog.text, f"script of {HIDDEN}" in caplog.text) == (True, True)
    commands = [[*line, name] for name in ("one", "two") for line in (["show"], ["watch"], ["show", "--json"], ["watch", "--json"])]
    shown = [shell(*line) for line in (*commands, ["draw", "--run", "one"])]
    for text in (caplog.text, told.getvalue(), *pictures, *(f"{each.out}{each.err}" for each in shown)):
        for secret in (PASSWORD, CARD, str(PIN)):
            assert secret not in text


def test_what_waits_keeps_its_secrets_where_its_code_is_not_known(shell: Shell) -> None:
    with Stepwell(shell.url, worker=False, secrets=["pin"]) as well:
        item = well.enqueue(parcel, ORDER, key="one")
        well.schedules.put("nightly", parcel, ORDER, every="1d")
        assert well.enqueue(parcel, ORDER, key="one").item_id == item.item_id
    for arguments in (["queue", "list", "--json"], ["queue", "show", item.item_id], ["schedule", "list", "--json"]):
        with program(shell, *arguments) as child:  # which has not imported this module
            shown, told = child.communicate(timeout=60)
        assert (HIDDEN in shown, "Ann" in shown, told) == (True, True, "")
        assert not any(secret in shown for secret in (PASSWORD, CARD, str(PIN)))


def test_command_line_hides_what_the_store_has(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Stepwell(shell.url, worker=False, secrets=["password"]) as well:
        well.create("one", context={"password": PASSWORD, "name": "Ann"})
        with well.transaction("one") as tx:
            tx.set_variable("password", PASSWORD)
        well.enqueue(place_order, ORDER)
        well.state.globals.set_many({"password": PASSWORD, "login": {"password": PASSWORD}, "name": "Ann"})
    for arguments in (["show", "one"], ["show", "one", "--json"]):
        shown = shell(*arguments).out
        assert (PASSWORD in shown, HIDDEN in shown) == (False, True)
    monkeypatch.setenv("STEPWELL_SECRETS", "password, other")
    for arguments in (["state", "list", "global"], ["state", "get", "global", "password"], ["state", "get", "global", "login"]):
        assert PASSWORD not in shell(*arguments).out
        assert PASSWORD in shell(*arguments, "--show-secrets").out
    assert PASSWORD not in shell("queue", "list", "--json").out
    told = shell("state", "export", "state.jsonl", "--json").json
    assert (told["keys"], told["secrets"], PASSWORD in (tmp_path / "state.jsonl").read_text()) == (3, 2, False)
    piped = shell("state", "export", "-")
    assert (piped.out.encode(), (tmp_path / "-").exists()) == ((tmp_path / "state.jsonl").read_bytes(), False)
    target = f"sqlite:///{tmp_path}/target.db"
    assert shell("state", "import", "state.jsonl", "--json", "--url", target).json["keys"] == 1
    shell("state", "export", "whole.jsonl", "--with-secrets")
    shell("state", "import", "whole.jsonl", "--url", target)
    with Stepwell(target, worker=False) as well:
        assert well.state.at(Scope.globals()).get("password") == PASSWORD


def test_command_line_makes_keys_rotates_finds_and_erases(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell("encryption", "key", "keys.json", "--id", "k1").code == 0
    assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0
    assert shell("encryption", "key", "keys.json", "--id", "k1").code != 0
    monkeypatch.setenv("STEPWELL_KEYRING", str(tmp_path / "keys.json"))
    done = shell("start", "shop.py:approval", "--id", "one", "--input", '"Ann"', "--subject", "user:42")
    assert done.code == 0, done.err
    found = shell("find", "--subject", "user:42", "--json").lines
    assert [each["runs"][0]["execution_id"] for each in found] == ["one"]
    assert "one" in shell("find", "--subject", "user:42").out
    assert shell("encryption", "key", "keys.json", "--id", "k2", "--json").json["active"] == "k2"
    assert shell("encryption", "rotate", "--json").json["rewrapped"] == 2
    assert shell("erase").code != 0
    refused = shell("erase", "--subject", "user:42")
    assert (refused.code != 0, "have not ended" in refused.err) == (True, True)
    erased = shell("erase", "--subject", "user:42", "--cancel")
    assert (erased.code, "1 run," in erased.out) == (0, True)
    assert len(shell("erase", "--list", "--json").lines) == 1
    assert "default" in shell("erase", "--list").out
    shown = shell("show", "one")
    assert (shown.code, "erased" in shown.out, "Ann" in shown.out) == (0, True, False)
    assert shell("show", "one", "--json").json["is_erased"] is True
    assert (shell("verify", "one").code, "erased" in shell("verify", "one").out) == (0, True)
    monkeypatch.delenv("STEPWELL_KEYRING")
    assert "STEPWELL_KEYRING" in shell("list").err
