"""An agent: a model is asked, asks for tools, gets what they gave, and is asked again, until it has an answer.

    python examples/agent.py [--engine temporal]

Shows: a loop whose length nobody knows before, every answer of the model and every result of a tool on record (after a crash none
is paid for again), and a budget that ends a run which goes on too long. The model here is a script, so that nothing leaves this
machine; put a real one in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import stepwell
from stepwell import ExecutionFailed, Governance, Stepwell, step, workflow
from stepwell.demo.engines import on_engine


@dataclass(frozen=True)
class ToolCall:
    tool: str
    argument: str


@dataclass(frozen=True)
class Reply:
    """What a model says: it wants tools, or it has an answer."""

    calls: list[ToolCall] = field(default_factory=list)
    answer: str = ""


@dataclass(frozen=True)
class Message:
    role: str
    text: str


# Tools.


def temperature(city: str) -> str:
    return {"Basel": "11", "Lima": "21"}[city]


def to_fahrenheit(celsius: str) -> str:
    return f"{float(celsius) * 9 / 5 + 32:g}"


TOOLS: dict[str, Callable[[str], str]] = {"temperature": temperature, "to_fahrenheit": to_fahrenheit}


@step(effect="tool")
async def use_tool(call: ToolCall) -> str:
    """A tool that fails is no failure of the run: the model is told, and may do better."""
    try:
        given = TOOLS[call.tool](call.argument)
    except (KeyError, ValueError) as error:
        given = f"error: {type(error).__name__}: {error}"
    print(f"   {call.tool}({call.argument}) -> {given}")
    return given


# The model.


@step(effect="model", timeout_seconds=60)
async def ask_model(messages: list[Message]) -> Reply:
    stepwell.current().spend(0.01)
    reply = scripted_model(messages)
    print(f"   model: {reply.answer or ', '.join(call.tool for call in reply.calls)}")
    return reply


def scripted_model(messages: list[Message]) -> Reply:
    """Stands for a model: looks at what was said so far, and says what comes next."""
    results = [message.text for message in messages if message.role == "tool"]
    if "for ever" in messages[0].text:
        return Reply([ToolCall("temperature", "Basel")])
    match results:
        case []:
            return Reply([ToolCall("temperature", "Basel"), ToolCall("temperature", "Atlantis")])
        case [celsius, _]:
            return Reply([ToolCall("to_fahrenheit", celsius)])
        case _:
            return Reply(answer=f"It is {results[-1]} degrees Fahrenheit in Basel; Atlantis I could not find.")


@workflow
async def agent(question: str) -> str:
    """The loop. Its tools are used side by side."""
    messages = [Message("user", question)]
    while True:
        reply = await ask_model(messages)
        if not reply.calls:
            return reply.answer
        results = await stepwell.map(use_tool, reply.calls)
        messages += [Message("tool", result) for result in results]


def main() -> None:
    budget = Governance(steps=12, cost=0.5, effects=("model", "tool"))
    with Stepwell() as well, on_engine(well):
        for question in ("How warm is it in Basel and Atlantis, in Fahrenheit?", "Watch the weather for ever"):
            print(question)
            run = well.start(agent, question, governance=budget)
            try:
                print(f"=> {run.result(timeout=30)}")
            except ExecutionFailed as error:
                print(f"=> stopped: {error.message}")
            print(f"   steps on record: {len(run.state().get_all_step_outputs())}")


if __name__ == "__main__":
    main()
