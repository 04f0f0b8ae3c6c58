"""Types as users meet them: a strict checker reads a program that uses the public face."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")


def test_program_of_a_user_passes_a_strict_checker_without_a_cast(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "program.py")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "enableTypeIgnoreComments": False}))
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in report["generalDiagnostics"]] == []
    assert report["summary"]["filesAnalyzed"] == 1
    assert "cast" not in PROGRAM.read_text(encoding="utf-8").replace("without one cast", "")
