"""The command line: scoped state, the store and the installation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.command_line import Shell, shell

from stepwell import Scope, Stepwell, SystemClock
from stepwell.cli.commands import doctor
from stepwell.cli.commands.state import scope_of

__all__ = ["shell"]


def test_state_is_set_read_listed_and_deleted(shell: Shell):
    assert shell("state", "set", "custom/shop", "lamp", '{"stock": 3}', "--json").json == {"key": "lamp", "revision": 1}
    assert shell("state", "get", "custom/shop", "lamp").json == {"stock": 3}
    entry = shell("state", "get", "custom/shop", "lamp", "--json").json
    assert entry == {"key": "lamp", "value": {"stock": 3}, "revision": 1, "expires_at": None}
    shell("state", "set", "custom/shop", "chair", "4")
    assert shell("state", "list", "custom/shop").out == 'chair\t4\nlamp\t{"stock":3}\n'
    assert shell("state", "list", "custom/shop", "--prefix", "la", "--json").lines == [{"key": "lamp", "value": {"stock": 3}}]
    assert shell("state", "list").out == "custom/shop\tdefault\n"
    assert shell("state", "delete", "custom/shop", "lamp", "--json").json == {"key": "lamp", "deleted": True}
    assert shell("state", "get", "custom/shop", "lamp").code == 3
    assert shell("state", "delete", "custom/shop", "lamp").code == 3


def test_scopes_are_listed_as_they_are_asked_for(shell: Shell):
    scopes = ["conversation/c", "custom/a%2Fb", "global", "step/w/s", "workflow/w", "workspace"]
    for scope in scopes:
        shell("state", "set", scope, "key", "1", "-w", "acme")
    listed = shell("state", "list", "--json").lines
    assert [each["scope"] for each in listed] == scopes
    for each in listed:
        workspace = ["-w", each["workspace"]] if each["workspace"] else []
        assert shell("state", "get", each["scope"], "key", *workspace).json == 1


def test_state_is_set_for_a_while_or_only_at_a_revision(shell: Shell):
    assert shell("state", "set", "global", "key", "1", "--ttl", "1h").code == 0
    assert shell("state", "get", "global", "key", "--json").json["expires_at"] is not None
    assert shell("state", "set", "global", "key", "2", "--revision", "0").code == 4
    assert shell("state", "set", "global", "key", "2", "--revision", "1").code == 0
    assert shell("state", "get", "global", "key", "--json").json["expires_at"] is None
    assert shell("state", "set", "global", "key", "3", "--revision", "2", "--ttl", "1h").code == 0
    assert shell("state", "get", "global", "key", "--json").json["expires_at"] is not None


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("global", Scope.globals()),
        ("workspace", Scope.of_workspace("acme")),
        ("workflow/import", Scope.of_workflow("import", "acme")),
        ("step/import/fetch", Scope.of_step("import", "fetch", "acme")),
        ("conversation/7", Scope.of_conversation("7", "acme")),
        ("user/ada", Scope.of_user("ada", "acme")),
        ("custom/a%2Fb", Scope.custom("a/b", "acme")),
    ],
)
def test_scopes_are_written_as_their_kind_and_names(text: str, scope: Scope):
    assert scope_of(text, "acme") == scope


NO_SCOPES = ["", "nonsense", "workflow", "workflow/a/b", "custom/", "global/x", "custom/%ZZ", "custom/%FF"]
INTERNAL = ["schedule", "worker", "definition", "inbox/run", "conversation_record/c", "conversation_index/ada"]


@pytest.mark.parametrize("scope", [*NO_SCOPES, *INTERNAL])
def test_what_is_no_scope_is_refused(shell: Shell, scope: str):
    shell("migrate")
    for done in shell("state", "set", scope, "key", "1"), shell("state", "get", scope, "key"), shell("state", "list", scope):
        assert done.code == 5
        assert done.err.count("\n") == 1


def test_state_value_that_is_no_json_is_refused(shell: Shell):
    assert shell("state", "set", "global", "key", "text").code == 5
    assert shell("state", "get", "global").code == 2


def test_doctor_finds_a_store_that_works(shell: Shell):
    shell("migrate")
    done = shell("doctor")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()].count("error") == 0
    told = shell("doctor", "--json").json
    assert told["is_ok"] is True
    named = {each["name"]: each["state"] for each in told["findings"]}
    assert {"python", "stepwell", "url", "schema", "read", "write", "durability", "clock"} <= named.keys()
    assert named["durability"] == "warning", "synchronous=NORMAL loses the last moments when the power goes"


def test_doctor_finds_a_store_that_is_not_there_or_not_ours(shell: Shell, tmp_path: Path):
    done = shell("doctor")
    assert done.code == 6
    assert "there is no store at" in done.out
    shell.write("other.db", "this is somebody else's file, and quite long enough to be looked at")
    assert shell("doctor", "--url", f"sqlite:///{tmp_path}/other.db", "--json").json["is_ok"] is False
    assert shell("doctor", "--url", "nonsense://").code == 6


def test_passwords_are_not_shown(shell: Shell):
    done = shell("doctor", "--url", "mysql://me:secret@host/db")
    assert "secret" not in done.out + done.err


def test_migrate_makes_a_store_ready(shell: Shell):
    assert shell("list").code == 6
    assert not (shell.folder / "well.db").exists(), "looking for runs makes no store"
    assert shell("migrate", "--json").json["is_ready"] is True
    assert shell("list").code == 0
    assert shell("migrate", "--url", "sqlite:///missing/well.db").code == 6


def test_url_is_taken_from_before_or_behind_the_command(shell: Shell):
    url = "sqlite:///other.db"
    with Stepwell(url, worker=False) as well:
        well.create("there")
    assert shell("--url", url, "list").out == shell("list", "--url", url).out != ""


def test_completion_scripts_are_printed(shell: Shell):
    for name in ("bash", "fish", "zsh"):
        assert "_STEPWELL_COMPLETE" in shell("completion", name).out
    assert "_STEPWELL_COMPLETE" in shell("completion", "zsh", "--json").json["script"]
    assert shell("completion", "tcsh").code == 2


@pytest.mark.parametrize("hours", [1, -1])
def test_doctor_warns_of_a_clock_that_differs_from_the_stores(
    shell: Shell, postgres_url: str, monkeypatch: pytest.MonkeyPatch, hours: int
):
    class WrongClock(SystemClock):
        def now_ms(self) -> int:
            return super().now_ms() + hours * 3_600_000

    monkeypatch.setattr(doctor, "SystemClock", WrongClock)
    [found] = [each for each in shell("doctor", "--url", postgres_url, "--json").json["findings"] if each["name"] == "clock"]
    assert found["state"] == "warning"
    assert re.search(
        rf"the store's is [{'-' if hours > 0 else '+'}]3[56]\d{{5}} ms from this machine's.*synchronize it", found["text"]
    )
