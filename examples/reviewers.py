"""Five reviewers are asked; the first three answers count, and then the other two are asked no more.

    python examples/reviewers.py [--engine temporal]

Shows: multiple instances with a join of 3 of 5, a question to a person inside of each, and a result that is worked out from the
answers that came.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from stepwell import Run, Stepwell, step
from stepwell.demo.engines import on_engine
from stepwell.flow import approval, call, define, each

REVIEWERS = ["ann", "bob", "cem", "dora", "eve"]
NEEDED = 3


@dataclass(frozen=True)
class Verdict:
    is_accepted: bool
    votes: dict[str, bool]


@step
async def invite(reviewer: str, paper: str) -> str:
    print(f"   dear {reviewer}, please review {paper!r}")
    return reviewer


@step
def weigh(answers: list[dict[str, Any]]) -> Verdict:
    """Most of the answers decide."""
    votes = {decision["by"]: decision["is_approved"] for answer in answers for decision in answer["decisions"]}
    return Verdict(sum(votes.values()) * 2 > len(votes), votes)


review = define(
    "review",
    each(
        call(invite, {"reviewer": "{{ item }}", "paper": "{{ trigger.input.paper }}"}),
        approval("Accept '{{ trigger.input.paper }}'?", approvers=["{{ item }}"], name="answer"),
        items="{{ trigger.input.reviewers }}",
        join=NEEDED,
        name="answers",
    ),
    call(weigh, {"answers": "{{ steps.answers.output }}"}),
)


def open_for(run: Run) -> dict[str, str]:
    """Who is asked at the moment, and the signal to answer with."""
    return {offer.approvers[0]: offer.name for offer in run.progress().offers}


def wait_until_asked(run: Run, people: int) -> dict[str, str]:
    ends = monotonic() + 30
    while len(asked := open_for(run)) != people:
        if monotonic() > ends:
            raise TimeoutError(f"{people} people should have been asked, not {sorted(asked)}")
        sleep(0.02)
    return asked


def main() -> None:
    with Stepwell() as well, on_engine(well):
        run = well.start(review, {"paper": "On Wells", "reviewers": REVIEWERS})
        asked = wait_until_asked(run, len(REVIEWERS))
        print(f"asked: {', '.join(sorted(asked))}")
        for reviewer, is_approved in (("dora", True), ("ann", False), ("eve", True)):
            print(f"   {reviewer}: {'yes' if is_approved else 'no'}")
            run.signal(asked[reviewer], {"by": reviewer, "is_approved": is_approved})
        verdict = run.result(timeout=30)
        print(f"=> {'accepted' if verdict['is_accepted'] else 'refused'} by {', '.join(sorted(verdict['votes']))}")
        print(f"   still asked: {', '.join(sorted(open_for(run))) or 'nobody'}")


if __name__ == "__main__":
    main()
