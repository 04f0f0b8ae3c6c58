"""The command line: what exploring a definition finds, with its place in the file and the way that leads there."""

from __future__ import annotations

from tests.support.command_line import Shell, program, shell

__all__ = ["shell"]

DEAD = """\
name: importing
do:
  sequence:
    - step: fetch
    - scope:
        throw: nothing to do
    - step: store
"""
SOUND = DEAD.replace("throw: nothing to do", "step: clean")


def test_check_says_what_is_never_reached_with_its_place_and_the_way(shell: Shell):
    shell.write("dead.yaml", DEAD)
    done = shell("check", "dead.yaml")
    assert done.code == 5
    assert done.out.splitlines() == [
        "dead.yaml:7:7: dead: 'store' is never begun: 'scope' before it never ends well",
        "    after: fetch completes",
    ]


def test_check_finds_nothing_in_a_near_definition_that_is_sound(shell: Shell):
    shell.write("sound.yaml", SOUND)
    assert shell("check", "sound.yaml").code == 0


def test_check_of_a_module_explores_its_definitions(shell: Shell):
    code = 'from stepwell.flow import define, scope, throw\nnightly = define("nightly", scope(throw("no")), "store")\n'
    shell.write("flows.py", code)
    done = shell("check", "flows.py", "--json")
    assert done.code == 5
    assert [each["source"] for each in done.json["problems"]] == ["nightly: do.sequence[1]"]


def test_check_names_the_functions_in_which_it_found_nothing(shell: Shell):
    shell.write("plain.py", "from stepwell import workflow\n\n\n@workflow\nasync def nightly() -> int:\n    return 1\n")
    done = shell("check", "plain.py")
    assert (done.code, done.out, done.err) == (0, "", "ok  plain.py: nightly\n")
    assert shell("check", "plain.py", "--json").json["definitions"] == [{"source": "plain.py", "name": "nightly", "version": 1}]


def test_check_says_when_a_definition_is_too_large_to_be_explored_whole(shell: Shell):
    steps = "".join(f"    - step: s{number}\n" for number in range(4500))
    shell.write("large.yaml", f"name: large\ndo:\n  sequence:\n{steps}")
    done = shell("check", "large.yaml")
    assert done.code == 0
    assert "large (explored in part: up to 4,000 states)" in done.err
    assert shell("check", "large.yaml", "--json").json["definitions"][0]["bound"] == "4,000 states"


FUNCTION = """\
from stepwell import step, workflow

@step
async def weigh(parcel): return len(parcel)

@workflow
async def parcels(parcel): return await weigh(parcel)
"""


def test_a_run_of_a_function_is_checked_and_drawn_by_its_calls(shell: Shell):
    shell.write("parcels.py", FUNCTION)
    assert shell("run", "parcels", "-m", "parcels.py", "--input", '"lamp"', "--id", "p").code == 0
    assert shell("check", "--run", "p", "-m", "parcels.py").code == 0
    drawn = shell("draw", "--run", "p", "-f", "mermaid")
    assert drawn.code == 0
    assert "weigh" in drawn.out
    times = shell("draw", "--run", "p", "-f", "waterfall")
    assert (times.code, times.out.startswith("<svg "), "weigh" in times.out) == (0, True, True)
    shell.write("sound.yaml", SOUND)
    assert shell("draw", "sound.yaml", "-f", "waterfall").code == 2  # a definition has no times


def test_a_run_is_checked_for_steps_that_are_missing_only_beside_a_program(shell: Shell):
    shell.write("parcels.py", FUNCTION)
    shell.write("others.py", FUNCTION.replace("weigh", "other").replace("parcels", "others"))
    shell("run", "parcels", "-m", "parcels.py", "--input", '"lamp"', "--id", "p")
    for modules, code in (((), 0), (("-m", "parcels.py"), 0), (("-m", "others.py"), 5)):
        with program(shell, "check", "--run", "p", *modules) as process:
            assert process.wait(30) == code


def test_check_and_draw_need_files_or_a_run(shell: Shell):
    assert shell("check").code == shell("draw").code == shell("draw", "x.yaml", "--run", "p").code == 2
