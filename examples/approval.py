"""A document waits for approval; when nobody answers in time, somebody else is asked; when nobody does again, it is cancelled.

    python examples/approval.py [--engine temporal]

Shows: a declared workflow, built in Python and the same in YAML (approval.yaml), approvals with a timeout, and what a run offers
to be answered. While it waits, a run holds neither thread nor memory; it may as well wait for days.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep

from stepwell import ExecutionCancelled, Run, Stepwell, step
from stepwell.demo.engines import on_engine
from stepwell.flow import Definition, approval, call, choice, define, otherwise, parse, when

AS_YAML = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Document:
    title: str
    text: str


@step
def check_spelling(document: Document) -> dict[str, int]:
    return {"words": len(document.text.split()), "mistakes": document.text.count("teh")}


@step
def publish(title: str) -> str:
    return f"{title!r} is published"


@step
def put_aside(title: str) -> str:
    return f"{title!r} is put aside"


def document_approval() -> Definition:
    """The definition, as Python builds it."""
    return define(
        "document-approval",
        call(check_spelling),
        approval(
            "Publish '{{ trigger.input.title }}'?",
            name="decision",
            details="{{ steps.check_spelling.output }}",
            approvers=["ann", "bob"],
            timeout="2s",  # days, in real life
            on_timeout="escalate",
            escalate_to=["carol"],
        ),
        choice(
            when("steps.decision.output.is_approved", call(publish, "{{ trigger.input.title }}")),
            otherwise(call(put_aside, "{{ trigger.input.title }}")),
        ),
    )


def answer(run: Run, by: str, is_approved: bool) -> None:
    """Answer for somebody, as soon as that person is asked."""
    ends = monotonic() + 30
    while monotonic() < ends:
        for offer in run.progress().offers:
            if by in offer.approvers:
                print(f"   {offer.title} {offer.details}  {by}: {'yes' if is_approved else 'no'}")
                run.signal(offer.name, {"by": by, "is_approved": is_approved})
                return
        sleep(0.02)
    raise TimeoutError(f"{by} was not asked")


def main() -> None:
    definition = document_approval()
    is_same = parse(AS_YAML.read_text(encoding="utf-8"), source=AS_YAML.name) == definition
    print(f"built in Python, or read from {AS_YAML.name}: {'the same' if is_same else 'NOT THE SAME'}")
    with Stepwell() as well, on_engine(well):
        print("Report: Ann is asked, and answers")
        report = well.start(definition, asdict(Document("Report", "all is well")))
        answer(report, "ann", True)
        print(f"=> {report.result(timeout=30)}")
        print("Poem: nobody answers, so Carol is asked")
        poem, memo = (well.start(definition, asdict(Document(title, "teh rain"))) for title in ("Poem", "Memo"))
        answer(poem, "carol", False)
        print(f"=> {poem.result(timeout=30)}")
        print("Memo: nobody answers, and Carol does not either")
        try:
            memo.result(timeout=30)
        except ExecutionCancelled:
            print(f"=> {memo.status().lower()}")


if __name__ == "__main__":
    main()
