"""Generate `stepwell/app/blocking` from `stepwell/app/awaited`: the same classes without `async` and `await`.

Run `make blocking` after each change in `app/awaited`. Where the two really differ, a class of the same shape exists for each
(`AsyncHost` and `Host`, `AsyncDriver` and `Driver`), so that renaming is enough. A test compares the checked-in modules with these.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

__all__ = ["BLOCKING", "generate"]

_APP = Path(__file__).parent.parent / "src" / "stepwell" / "app"
_AWAITED, BLOCKING = _APP / "awaited", _APP / "blocking"

_HEADER = "# Generated from app/awaited/{name} by `make blocking`. Do not edit: change that module and generate again.\n"

# In code and in docstrings alike. The order counts: whole phrases come before the words in them.
_REPLACEMENTS = (
    (r"Every call that does I/O is awaited\.", "Every call blocks until it is done; any thread may call."),
    (r"What a program holds that awaits:", "What a program holds that blocks:"),
    (r"asyncio\.current_task\(\)", "threading.get_ident()"),
    (r"\bimport asyncio\b", "import threading"),
    (r"\bstepwell\.app\.awaited\b", "stepwell.app.blocking"),
    (r"\b(async|await) ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
)


def generate() -> dict[Path, str]:
    """Return the text of each blocking module, by its path."""
    return {BLOCKING / source.name: _blocking(source) for source in sorted(_AWAITED.glob("*.py"))}


def _blocking(source: Path) -> str:
    text = source.read_text(encoding="utf-8")
    for pattern, replacement in _REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    # Shorter names sort and wrap differently.
    text = _ruff("check", "--select", "I", "--fix", "--quiet", text=_HEADER.format(name=source.name) + text)
    return _ruff("format", "--quiet", text=text)


def _ruff(*arguments: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(BLOCKING / "generated.py"), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, encoding="utf-8").stdout


def main() -> None:
    """Write all blocking modules, and remove those whose source is gone."""
    modules = generate()
    for stale in set(BLOCKING.glob("*.py")) - modules.keys():
        stale.unlink()
    for path, text in modules.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
