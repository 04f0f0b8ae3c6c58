"""The command line: Lua files as workflows."""

from __future__ import annotations

from tests.support.command_line import Shell, shell

__all__ = ["shell"]

COUNTING = 'State.set("n", (State.get("n") or 0) + 1)\nprint("run", State.get("n"))\nreturn {n = State.get("n"), input = input}'


def test_lua_file_runs_and_what_it_prints_is_on_standard_error(shell: Shell):
    shell.write("count.lua", COUNTING)
    done = shell("run", "count.lua", "--input", '{"a": [1]}')
    assert done.json == {"n": 1, "input": {"a": [1]}}
    assert "main: run" in done.err


def test_changed_lua_file_is_the_next_version(shell: Shell):
    shell.write("count.lua", COUNTING)
    assert [shell("run", "count.lua").json["n"] for _ in range(2)] == [1, 2]
    shell.write("count.lua", "return 'changed'")
    assert shell("run", "count.lua").json == "changed"
    assert "[1,2]" in shell("workflow", "list").out


def test_tools_of_a_lua_file_come_from_modules(shell: Shell):
    shell.write("tools.lua", 'return Tool.execute("reserve", {item = "lamp"})')
    assert shell("run", "tools.lua", "-m", "shop.py").json == "reserved lamp"


def test_lua_file_that_is_missing_or_no_text_is_named(shell: Shell):
    assert shell("run", "none.lua").code == 3
    shell.write("wrong.lua", "x = = 1")
    done = shell("run", "wrong.lua")
    assert done.code == 1
    assert "script:1: unexpected symbol" in done.err
