"""The pytest plugin: what it gives to a test of somebody's workflows, and that it stays out of the way of others."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

# Loaded before any inner run: each takes what it loaded with it when it ends, and the next would get half of it anew.
import stepwell.testing.crash_testing
import stepwell.testing.well  # noqa: F401

pytest_plugins = ["pytester"]

WORKFLOWS = """
    import stepwell
    from stepwell import step, workflow

    effects = []

    @step
    async def charge(cents):
        effects.append(cents)
        return cents

    @workflow
    async def checkout(cents):
        paid = await charge(cents)
        await stepwell.sleep("30d")
        return paid + await charge(1)

    @workflow
    def plain(cents):
        return charge(cents) + charge(1)

    @workflow
    async def careless(cents):
        effects.append("outside")
        return await charge(cents)

    @workflow
    async def fickle(cents):
        return await charge(len(effects))
"""


def outcomes(pytester: pytest.Pytester, tests: str, **expected: int) -> pytest.RunResult:
    pytester.makepyfile(workflows=WORKFLOWS, test_them=tests)
    is_installed = any(point.value == "stepwell.testing.plugin" for point in metadata.entry_points(group="pytest11"))
    result = pytester.runpytest("-W", "error", *([] if is_installed else ["-p", "stepwell.testing.plugin"]))
    result.assert_outcomes(**expected)
    return result


def test_fixtures_run_workflows_and_skip_time(pytester: pytest.Pytester):
    outcomes(
        pytester,
        """
        from workflows import checkout, plain

        def test_result(well, clock):
            before = clock.now()
            assert well.start(checkout, 100).result(timeout=60) == 101
            assert (clock.now() - before).days == 30

        def test_by_hand(well, clock):
            run = well.start(checkout, 100)
            clock.advance("29d")
            assert run.status() == "WAITING"
            clock.advance("1d1s")
            assert run.status() == "COMPLETED"

        def test_plain(well):
            assert well.start(plain, 100).result(timeout=60) == 101
        """,
        passed=3,
    )


def test_each_test_has_a_well_of_its_own_whatever_the_environment_says(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STEPWELL_URL", "nonsense://")
    outcomes(
        pytester,
        """
        import pytest
        from workflows import plain

        @pytest.mark.parametrize("turn", [1, 2])
        def test_alone(well, turn):
            assert well.executions.list() == []
            well.start(plain, 100, execution_id="the same").result(timeout=60)
        """,
        passed=2,
    )


def test_crash_everywhere_passes_what_survives(pytester: pytest.Pytester):
    outcomes(
        pytester,
        """
        import pytest
        from workflows import checkout, effects, plain

        @pytest.mark.parametrize("workflow", [checkout, plain])
        def test_crashes(crash_everywhere, workflow):
            report = crash_everywhere(workflow, 100, effects=lambda: len(effects))
            assert report.result == 101
            assert report.crashes >= 8
        """,
        passed=2,
    )


def test_crash_everywhere_fails_what_does_not(pytester: pytest.Pytester):
    result = outcomes(
        pytester,
        """
        from workflows import careless, effects, fickle

        def test_effect_outside_of_a_step(crash_everywhere):
            crash_everywhere(careless, 100, effects=lambda: len(effects))

        def test_code_that_is_not_deterministic(crash_everywhere):
            crash_everywhere(fickle, 100)
        """,
        failed=2,
    )
    result.stdout.fnmatch_lines(["*killed at commit 2 (record_step charge)*something outside of a step has effects*"])
    result.stdout.fnmatch_lines(["*it ended as COMPLETED with *, and as COMPLETED with * without a crash*"])


def test_plugin_is_declared_and_imports_nothing_beyond_the_package():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"stepwell": "stepwell.testing.plugin"}
    code = (
        "import sys, pytest, stepwell; before = set(sys.modules); import stepwell.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["stepwell.testing", "stepwell.testing.plugin"]
