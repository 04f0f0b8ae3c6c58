"""Types as users meet them: a strict checker reads a program that uses the public face."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("program.py")


MISTAKES = """
import stepwell
from program import Order, charge, checkout, pack, packing, two
from stepwell import Stepwell


def mistakes(well: Stepwell) -> None:
    well.start(checkout, 5)
    well.start(packing, 5)
    well.start(two, 7)
    well.start(checkout, Order("a", 1), nonsense=1)
    well.start(lambda: 1)
    well.enqueue(checkout, 5)
    two.with_input(5)
    two.with_input("a", cents="b")
    stepwell.compensate(charge, 5)
    pack.sync("a")
    order: Order = stepwell.wait_signal.sync("a", type=str)


async def more_mistakes() -> None:
    await stepwell.map(charge, ["a"])
    await stepwell.map(pack, [1])
    stepwell.wait_signal("a", type=Order)
"""


def test_checkers_find_every_mistake_in_a_program_of_a_user(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "program.py")
    (tmp_path / "mistakes.py").write_text(MISTAKES)
    wrong = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if line.startswith("    ")]
    pyright = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", "mistakes.py"]
    done = subprocess.run(pyright, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {each["range"]["start"]["line"] + 1 for each in found} >= set(wrong)
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--enable-error-code=unused-awaitable",
        "--enable-error-code=unused-coroutine",
    ]
    done = subprocess.run([*mypy, "mistakes.py"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert {int(line.split(":")[1]) for line in done.stdout.splitlines() if " error: " in line} >= set(wrong), done.stdout


def test_program_of_a_user_passes_mypy(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "program.py")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "program.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout


def test_program_of_a_user_passes_a_strict_checker_without_a_cast(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path / "program.py")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "enableTypeIgnoreComments": False}))
    command = [sys.executable, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    report = json.loads(done.stdout)
    assert [f"{each['range']['start']['line'] + 1}: {each['message']}" for each in report["generalDiagnostics"]] == []
    assert report["summary"]["filesAnalyzed"] == 1
    assert "cast" not in PROGRAM.read_text(encoding="utf-8").replace("without one cast", "")
