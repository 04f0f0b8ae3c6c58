"""The mutation run: which mistakes it makes, and which tests it runs for a file."""

from __future__ import annotations

import ast
from pathlib import Path

from tools.mutants import ROOT, mutants_of, stages_of

PYTHON = b'''"""A module."""

_PAGE = 100


def ends(now: int, until: int = 1) -> bool:
    """Return whether it has ended."""
    if not now:
        raise ValueError(f"{now + 1}")
    log.warning("late")
    return (now >= until) and now is not None


class Span(Struct, frozen=True):
    """A span."""
'''


def changed(path: str, source: bytes) -> set[str]:
    """The lines that mistakes make of a source, without those that it had."""
    lines = {line for each in mutants_of(path, source) for line in each.applied(source).decode().splitlines()}
    return {line.strip() for line in lines - set(source.decode().splitlines())}


def test_mistakes_in_python_are_in_what_it_does_and_not_in_messages_types_and_sizes() -> None:
    assert changed("a.py", PYTHON) == {
        "def ends(now: int, until: int = 2) -> bool:",
        "if now:",
        "pass",
        "return (now > until) and now is not None",
        "return (now >= until) or now is not None",
        "return (now >= until) and now is None",
    }


def test_mistakes_in_sql_and_lua_are_in_conditions_and_not_in_comments_and_columns() -> None:
    sql = b"-- name: due. a <= b\nSELECT a FROM t WHERE until_ms <= $1 AND b IS NULL;\n    a text NOT NULL,\n"
    assert changed("a.sql", sql) == {
        "SELECT a FROM t WHERE until_ms < $1 AND b IS NULL;",
        "SELECT a FROM t WHERE until_ms <= $1 OR b IS NULL;",
        "SELECT a FROM t WHERE until_ms <= $1 AND b IS NOT NULL;",
    }
    lua = b"-- a == b\nif now == until then\n  redis.call('DEL', KEYS[1])\nend\n"
    assert changed("a.lua", lua) == {"if now ~= until then", ""}


def test_every_mistake_in_the_projects_python_can_be_read() -> None:
    for file in sorted((ROOT / "src/stepwell/model").glob("*.py")):
        source = file.read_bytes()
        for each in mutants_of(str(file), source)[:20]:
            ast.parse(each.applied(source))


def test_every_file_has_tests_near_to_it() -> None:
    for part in ("model", "stores"):
        for file in (ROOT / "src/stepwell" / part).rglob("*.py"):
            stages = stages_of(str(file.relative_to(ROOT)))
            named = [name for stage in stages for name in stage if name.startswith("tests/")]
            assert named
            assert all(Path(ROOT / name).exists() for name in named)
