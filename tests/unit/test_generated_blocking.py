"""The blocking classes are generated from the awaited ones, and the checked-in modules are current."""

from __future__ import annotations

from tools.generate_blocking import BLOCKING, generate


def test_blocking_modules_are_those_that_make_blocking_writes() -> None:
    checked_in = {path: path.read_text(encoding="utf-8") for path in BLOCKING.glob("*.py")}
    generated = generate()
    changed = sorted(path.name for path in checked_in.keys() | generated.keys() if checked_in.get(path) != generated.get(path))
    assert not changed, f"run `make blocking`: app/blocking is not what app/awaited gives: {', '.join(changed)}"


def test_nothing_awaited_is_left_in_a_blocking_module() -> None:
    for path, text in generate().items():
        code = [line for line in text.splitlines() if not line.startswith("#")]
        left = [line for line in code for word in ("async ", "await ", "asyncio", "Async", "awaited") if word in line]
        assert not left, path.name
