"""The command line: checking and drawing definitions."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from tests.support.command_line import Shell, shell

__all__ = ["shell"]

SOUND = """
name: import
do:
  - step: reserve
  - parallel: {left: {log: left}, right: {log: right}}
"""
FAULTY = """
name: import
do:
  - {step: fetch, retry: {attempts: 0}}
  - {loop: poll, until: steps.poll.output.done}
  - {step: store, with: "{{ steps.fech.output }}"}
"""


def test_check_says_every_fault_with_its_place_and_ends_with_five(shell: Shell):
    shell.write("faulty.yaml", FAULTY)
    shell.write("sound.yaml", SOUND)
    done = shell("check", "faulty.yaml", "sound.yaml")
    assert done.code == 5
    assert [line.split(": ")[0] for line in done.out.splitlines()] == ["faulty.yaml:4:26", "faulty.yaml:5:25", "faulty.yaml:6:29"]
    assert "did you mean 'fetch'?" in done.out
    assert "sound.yaml: import" in done.err


def test_check_as_json_is_one_value(shell: Shell):
    shell.write("faulty.yaml", FAULTY)
    told = shell("check", "faulty.yaml", "--json").json
    assert told["is_ok"] is False
    assert [(each["source"], each["line"], each["column"]) for each in told["problems"]] == [
        ("faulty.yaml", 4, 26),
        ("faulty.yaml", 5, 25),
        ("faulty.yaml", 6, 29),
    ]
    shell.write("sound.yaml", SOUND)
    sound = shell("check", "sound.yaml", "--json")
    assert sound.code == 0
    assert sound.json == {
        "is_ok": True,
        "definitions": [{"source": "sound.yaml", "name": "import", "version": 1}],
        "problems": [],
    }


def test_check_with_a_module_knows_its_steps(shell: Shell):
    shell.write("sound.yaml", SOUND)
    assert shell("check", "sound.yaml", "-m", "shop").code == 0
    shell.write("unknown.yaml", SOUND.replace("reserve", "reserv"))
    done = shell("check", "unknown.yaml", "-m", "shop")
    assert done.code == 5
    assert "there is no step 'reserv'; did you mean 'reserve'?" in done.out


def test_check_of_a_module_checks_its_definitions(shell: Shell):
    shell.write("flows.py", 'from stepwell.flow import define\nimporting = define("importing", "fetch", "store")\n')
    assert shell("check", "flows.py", "--json").json["definitions"][0]["name"] == "importing"
    assert shell("check", "flows.py:importing").code == 0


@pytest.mark.parametrize("name", ["nothing.yaml", "nothing.py"])
def test_check_of_no_file_ends_with_three(shell: Shell, name: str):
    done = shell("check", name)
    assert done.code == 3
    assert name in done.err


def test_check_of_a_file_that_is_no_text_is_refused(shell: Shell):
    (shell.folder / "odd.yaml").write_bytes(b"\xff\xfe\x00")
    assert shell("check", "odd.yaml").code == 5


def test_draw_gives_svg_or_mermaid(shell: Shell):
    shell.write("sound.yaml", SOUND)
    assert ET.fromstring(shell("draw", "sound.yaml").out).tag.endswith("svg")
    assert shell("draw", "sound.yaml", "--format", "mermaid").out.startswith("flowchart TD")
    assert shell("draw", "sound.yaml", "--json").json["picture"].startswith("<svg")


def test_draw_writes_a_file_in_the_format_of_its_name(shell: Shell):
    shell.write("sound.yaml", SOUND)
    done = shell("draw", "sound.yaml", "-o", "picture.mmd")
    assert (done.code, done.out) == (0, "")
    assert (shell.folder / "picture.mmd").read_text().startswith("flowchart TD")
    assert shell("draw", "sound.yaml", "-o", "missing/picture.svg").code == 5


def test_draw_of_what_has_no_structure_or_is_faulty_ends_with_five(shell: Shell):
    shell.write("faulty.yaml", FAULTY)
    assert shell("draw", "shop.py:checkout").code == 5
    assert shell("draw", "faulty.yaml").code == 5
    assert shell("draw", "faulty.yaml", "--format", "png").code == 2
