"""The commands that a user of Redis must be allowed: ``probe.lua`` tries each of them when a store is opened."""

from __future__ import annotations

import re
from pathlib import Path

import stepwell.stores.redis

SCRIPTS = Path(stepwell.stores.redis.__file__).parent / "scripts"
CALL = re.compile(r"(?:redis\.p?call|later|gather)\(\s*'([A-Z]+)'")


def test_probe_tries_every_command_that_a_script_runs() -> None:
    used = {name for path in SCRIPTS.rglob("*.lua") if path.name != "probe.lua" for name in CALL.findall(path.read_text())}
    tried = set(CALL.findall((SCRIPTS / "probe.lua").read_text()))
    assert used <= tried, "a command that the user may not run must not fail in the middle of a script"
    assert len(used) > 20
