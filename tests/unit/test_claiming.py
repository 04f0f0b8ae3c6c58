"""The rules of a claim, compared with the plainest way to follow them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.model.queue_fairness import (
    Candidate,
    ClaimSelection,
    Contender,
    LaneKey,
    Queued,
    changed_rate_ms,
    earlier_rate_ms,
    free_slots,
    later_rate_ms,
    rate_allowance,
)

NOW = 1_790_000_000_000
WORKSPACES, QUEUES, WORKFLOWS = ("a", "b", "c"), ("q", "r"), ("v", "w")


@st.composite
def claims(draw: st.DrawFn) -> tuple[float, list[Contender], dict[LaneKey, list[Candidate]], dict[str, int], int, int]:
    """Turn, workspaces, lanes, what queues may start, the limit, and how many items are known of a lane at a time."""
    virtual_time = draw(st.sampled_from([0.0, 2.5, 7.0]))
    contenders = [
        Contender(
            name, draw(st.sampled_from([0.5, 1.0, 2.0, 4.0])), draw(st.sampled_from([0.0, 2.5, 3.0, 8.0])), draw(st.integers(1, 6))
        )
        for name in draw(st.lists(st.sampled_from(WORKSPACES), unique=True))
    ]
    lanes: dict[LaneKey, list[Candidate]] = {}
    for number in range(draw(st.integers(0, 30))):
        key = LaneKey(draw(st.sampled_from(WORKSPACES)), draw(st.sampled_from(QUEUES)), draw(st.sampled_from(WORKFLOWS)))
        lanes.setdefault(key, []).append(Candidate(draw(st.integers(-2, 2)), number))
    queues = draw(st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 5)))
    return (
        virtual_time,
        contenders,
        {key: sorted(line) for key, line in lanes.items()},
        queues,
        draw(st.integers(1, 12)),
        draw(st.integers(1, 5)),
    )


def plain_choice(
    virtual_time: float, contenders: list[Contender], lanes: dict[LaneKey, list[Candidate]], queues: dict[str, int], limit: int
) -> list[int]:
    """Look at everything for each item that is taken."""
    taken: list[tuple[LaneKey, Candidate]] = []
    while len(taken) < limit:
        firsts = []
        for contender in contenders:
            count = sum(key.workspace_id == contender.workspace_id for key, _ in taken)
            left = [
                candidate
                for key, line in lanes.items()
                for candidate in line
                if key.workspace_id == contender.workspace_id
                and (key, candidate) not in taken
                and sum(other.queue == key.queue for other, _ in taken) < queues.get(key.queue, 1_000)
            ]
            if left and count < contender.allowance:
                firsts.append((max(contender.passed, virtual_time) + count / contender.weight, min(left).number))
        if not firsts:
            break
        number = min(firsts)[1]
        taken.append(next((key, each) for key, line in lanes.items() for each in line if each.number == number))
    return [candidate.number for _, candidate in taken]


def choose(
    virtual_time: float, contenders: list[Contender], lanes: dict[LaneKey, list[Candidate]], queues: dict[str, int], page: int
) -> ClaimSelection:
    def more(key: LaneKey, after: Candidate) -> Queued:
        start = lanes[key].index(after) + 1
        return Queued(key, lanes[key][start : start + page], start + page >= len(lanes[key]))

    first = [Queued(key, line[:page], page >= len(line)) for key, line in lanes.items()]
    return ClaimSelection(virtual_time, contenders, first, dict(queues), more)


@given(claims())
def test_claim_takes_the_smallest_tags_whatever_is_known_of_the_lanes_at_first(
    claim: tuple[float, list[Contender], dict[LaneKey, list[Candidate]], dict[str, int], int, int],
) -> None:
    virtual_time, contenders, lanes, queues, limit, page = claim
    choosing = choose(virtual_time, contenders, lanes, queues, page)
    choosing.take(limit)
    assert choosing.numbers == plain_choice(virtual_time, contenders, lanes, queues, limit)


@given(claims())
def test_passes_and_virtual_time_follow_from_what_was_taken(
    claim: tuple[float, list[Contender], dict[LaneKey, list[Candidate]], dict[str, int], int, int],
) -> None:
    virtual_time, contenders, lanes, queues, limit, page = claim
    choosing = choose(virtual_time, contenders, lanes, queues, page)
    choosing.take(limit)
    workspace_of = {candidate.number: key.workspace_id for key, line in lanes.items() for candidate in line}
    counts = Counter(workspace_of[number] for number in choosing.numbers)
    by_name = {contender.workspace_id: contender for contender in contenders}
    expected = {
        name: (max(by_name[name].passed, virtual_time) + count / by_name[name].weight, count) for name, count in counts.items()
    }
    assert choosing.passes() == expected
    last = [passed - 1 / by_name[name].weight for name, (passed, _) in expected.items()]
    assert choosing.virtual_time == pytest.approx(max([virtual_time, *last]))


@given(st.lists(st.sampled_from([0.5, 1.0, 3.0, 5.0, 10.0]), min_size=2, max_size=6), st.integers(1, 40), st.integers(1, 7))
def test_claims_one_after_the_other_keep_the_shares(weights: list[float], rounds: int, limit: int) -> None:
    """No workspace is more than one item ahead of another, in shares, at any moment."""
    virtual_time, passed, got = 0.0, [0.0] * len(weights), [0] * len(weights)
    for _ in range(rounds):
        contenders = [Contender(str(index), weight, passed[index], 1_000) for index, weight in enumerate(weights)]
        lanes = {
            LaneKey(str(index), "q", "w"): [
                Candidate(0, index * 1_000_000 + number) for number in range(got[index], got[index] + limit)
            ]
            for index in range(len(weights))
        }
        choosing = choose(virtual_time, contenders, lanes, {}, limit)
        choosing.take(limit)
        virtual_time = choosing.virtual_time
        for name, (now_passed, count) in choosing.passes().items():
            passed[int(name)] = now_passed
            got[int(name)] += count
        shares = list(zip(got, weights, strict=True))
        assert max((count - 1) / weight for count, weight in shares) <= min(count / weight for count, weight in shares) + 1e-6


@pytest.mark.parametrize(("concurrency", "used", "free"), [(3, 1, 2), (3, 3, 0), (3, 9, 0), (0, 0, 0)])
def test_free_slots_are_never_negative(concurrency: int, used: int, free: int) -> None:
    assert free_slots(concurrency, used) == free


def test_no_limit_is_no_limit() -> None:
    assert free_slots(None, 10**9) > 10**9
    assert rate_allowance(None, NOW * 2, NOW) > 10**9
    assert later_rate_ms(None, 5.0, NOW, 3) == 5.0


@pytest.mark.parametrize("rate", [1, 2, 3, 7, 10, 30, 99, 1000, 12.5])
def test_a_second_s_worth_may_start_at_once(rate: float) -> None:
    assert rate_allowance(rate, 0, NOW) == int(rate)
    spent = later_rate_ms(rate, 0, NOW, int(rate))
    assert rate_allowance(rate, spent, NOW) == 0
    assert rate_allowance(rate, spent, NOW + 1000) == int(rate)


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5])
def test_rate_below_one_spaces_single_items(rate: float) -> None:
    assert rate_allowance(rate, 0, NOW) == 1
    spent = later_rate_ms(rate, 0, NOW, 1)
    assert rate_allowance(rate, spent, NOW + round(990 / rate)) == 0
    assert rate_allowance(rate, spent, NOW + round(1000 / rate) + 1) == 1


def test_rate_of_zero_starts_nothing() -> None:
    assert rate_allowance(0, 0, NOW) == 0


@given(st.sampled_from([0.3, 1, 2, 3.7, 10, 50]), st.lists(st.integers(0, 3_000), min_size=1, max_size=40))
def test_no_span_of_time_has_more_starts_than_its_rate_allows(rate: float, pauses: list[int]) -> None:
    now, rate_ms, starts = NOW, 0.0, list[int]()
    for pause in pauses:
        now += pause
        count = rate_allowance(rate, rate_ms, now)
        rate_ms = later_rate_ms(rate, rate_ms, now, count)
        starts += [now] * count
    for index, first in enumerate(starts):
        for later, last in enumerate(starts[index:], 1):
            assert later <= rate * ((last - first) / 1000 + 1) + 1.01


@given(st.sampled_from([0.3, 1, 3, 50]), st.integers(1, 50))
def test_whoever_asks_often_gets_the_whole_rate(rate: float, seconds: int) -> None:
    rate_ms, started = 0.0, 0
    for now in range(NOW, NOW + seconds * 1000 + 1, 100):
        count = rate_allowance(rate, rate_ms, now)
        rate_ms = later_rate_ms(rate, rate_ms, now, count)
        started += count
    assert started >= int(rate * seconds)


@given(st.sampled_from([0.3, 1, 3, 50]), st.lists(st.integers(0, 3_000), min_size=1, max_size=40))
def test_rate_that_stays_the_same_is_changed_to_nothing_else(rate: float, pauses: list[int]) -> None:
    now, rate_ms = NOW, 0.0
    for pause in pauses:
        now += pause
        rate_ms = later_rate_ms(rate, rate_ms, now, rate_allowance(rate, rate_ms, now))
        assert changed_rate_ms(rate, rate_ms, now) == pytest.approx(rate_ms, abs=4)


@pytest.mark.parametrize(("rate", "next_ms"), [(100, 10), (2, 500), (0.5, 2000)])
def test_raised_rate_is_owed_no_more_than_it_could_be_by_itself(rate: float, next_ms: int) -> None:
    owed = changed_rate_ms(rate, later_rate_ms(0.001, 0, NOW, 1), NOW)
    assert [rate_allowance(rate, owed, NOW + round(after)) for after in (0, 0.9 * next_ms, next_ms)] == [0, 0, 1]


@pytest.mark.parametrize("rate", [None, 0])
def test_rate_that_says_nothing_about_the_next_start_leaves_it(rate: float | None) -> None:
    assert changed_rate_ms(rate, NOW * 2, NOW) == NOW * 2


RATES = st.sampled_from([0.3, 1, 2, 3.7, 10, 50])
PAUSES = st.lists(st.integers(0, 3_000), max_size=20)


@given(RATES, PAUSES, st.integers(1, 60), st.lists(st.integers(0, 4_000), min_size=1, max_size=5))
def test_starts_that_are_given_back_at_once_are_as_if_never_counted(
    rate: float, pauses: list[int], wanted: int, later: list[int]
) -> None:
    now, rate_ms = NOW, 0.0
    for pause in pauses:
        now += pause
        rate_ms = later_rate_ms(rate, rate_ms, now, min(rate_allowance(rate, rate_ms, now), 1 + pause % 3))
    now += 700
    claimed = min(rate_allowance(rate, rate_ms, now), wanted)
    given_back = later_rate_ms(rate, rate_ms, now, claimed)
    for _ in range(claimed):
        given_back = earlier_rate_ms(rate, given_back, now, now)
    times = [now + each for each in (0, *later)]
    assert [rate_allowance(rate, given_back, at) for at in times] == [rate_allowance(rate, rate_ms, at) for at in times]


@given(RATES, st.lists(st.tuples(st.integers(0, 1_500), st.integers(0, 4), st.sampled_from([0, 1, 9])), min_size=1, max_size=40))
def test_rate_holds_whatever_is_given_back(rate: float, turns: list[tuple[int, int, int]]) -> None:
    """Of each claim some are held, and given back later, one at a time, while all others start. Beside it the plain count: what
    would be due, had those that were given back never been claimed."""
    now, rate_ms, log, held = NOW, 0.0, list[tuple[int, bool]](), list[int]()
    for pause, kept, freed in turns:
        now += pause
        for place in held[:freed]:
            rate_ms = earlier_rate_ms(rate, rate_ms, log[place][0], now)
            log[place] = log[place][0], False
        held = held[freed:]
        plain = 0.0
        for at, counts in log:
            plain = later_rate_ms(rate, plain, at, int(counts))
        assert max(rate_ms, now) >= max(plain, now) - 0.01
        count = rate_allowance(rate, rate_ms, now)
        rate_ms = later_rate_ms(rate, rate_ms, now, count)
        held += range(len(log), len(log) + min(kept, count))
        log += [(now, True)] * count


def test_start_gives_back_less_the_later_it_comes() -> None:
    due = later_rate_ms(1, 0, NOW, 1)
    assert [earlier_rate_ms(1, due, NOW, NOW + held) for held in (0, 400, 1_000, 9_000)] == [NOW, NOW + 400, due, due]
    assert earlier_rate_ms(1, due, NOW, NOW - 5) == NOW  # a clock that was set back grants no more than was counted


@pytest.mark.parametrize("rate", [None, 0])
def test_without_a_rate_no_start_is_given_back(rate: float | None) -> None:
    assert earlier_rate_ms(rate, NOW + 5.0, NOW, NOW) == NOW + 5
