"""Programs of two versions at once: one reads the newer version ahead, one uses it, and a migration of everything runs (T49)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from stepwell import Stepwell, migration

WAIT = 120
KEYS, ROUNDS = 4, 40

PROGRAM = textwrap.dedent("""
    import sys
    from stepwell import Conflict, Stepwell, migration

    url, kind, rounds, keys = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

    def forward(value):
        return {"cents": value["euros"] * 100}

    def back(value):
        return {"euros": value["cents"] // 100}

    def total_forward(value):
        value["variables"]["cents"] = value["variables"].pop("euros") * 100
        return value

    def total_back(value):
        value["variables"]["euros"] = value["variables"].pop("cents") // 100
        return value

    is_old = kind == "old"
    migration(scope="custom/prices", from_version=1, to_version=2, back=back, ahead=is_old)(forward)
    migration(workflow="shop", from_version=1, to_version=2, back=total_back, ahead=is_old)(total_forward)
    name, one = ("euros", 1) if is_old else ("cents", 100)

    def add_to_key(prices, key):
        while True:
            entry = prices.entry(key)
            try:
                return prices.compare_and_set(key, {name: entry.value[name] + one}, revision=entry.revision)
            except Conflict:
                continue

    def add_to_run(well, run):
        while True:
            try:
                with well.transaction(run) as tx:
                    tx.update_context(lambda context: {**context, "n": context.get("n", 0) + 1})
                assert list(well.load(run).variables) == [name]
                return
            except Conflict:
                continue

    with Stepwell(url, worker=False) as well:
        print("ready", flush=True)
        sys.stdin.readline()
        if kind == "bulk":
            migrated = sum(well.migrate_state(batch=2).migrated for _ in range(rounds))
            print(migrated)
        else:
            prices = well.state.custom("prices")
            for number in range(rounds):
                add_to_key(prices, f"k{number % keys}")
                add_to_run(well, f"run-{number % keys}")
            print(rounds)
""")


def in_cents(value: dict[str, int]) -> dict[str, int]:
    return {"cents": value["euros"] * 100}


def test_old_and_new_programs_work_on_the_same_values_without_an_error(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/well.db?synchronous=NORMAL"
    with Stepwell(url, worker=False) as well:
        well.state.custom("prices").set_many({f"k{n}": {"euros": 0} for n in range(KEYS)})
        for n in range(KEYS):
            well.create(f"run-{n}", workflow="shop")
            with well.transaction(f"run-{n}") as tx:
                tx.set_variable("euros", 7)
    command = [sys.executable, "-c", PROGRAM, url]
    programs = [
        subprocess.Popen(
            [*command, kind, str(ROUNDS), str(KEYS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for kind in ("old", "new", "bulk")
    ]
    for each in programs:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    told = [each.communicate("go\n", timeout=WAIT) for each in programs]
    assert [each.returncode for each in programs] == [0, 0, 0], told
    with Stepwell(url, worker=False) as well:
        migration(scope="custom/prices", from_version=1, to_version=2)(in_cents)
        migration(workflow="shop", from_version=1, to_version=2)(lambda value: value)
        assert well.migrate_state().failed == 0
        assert sum(each["cents"] for each in well.state.custom("prices").all().values()) == (100 + 100) * ROUNDS
        assert [well.load(f"run-{n}").context["n"] for n in range(KEYS)] == [2 * ROUNDS // KEYS] * KEYS
        assert all(well.verify(f"run-{n}").ok for n in range(KEYS))
