"""The buffer of a transaction: collects the changes of an execution as mutations.

Values are copied at the call, in O(1) of the state; nothing is visible outside. A fault in an argument is kept, too, and reported
at the commit together with all other faults of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, cast

import msgspec

from stepwell.duration import Span, seconds_of
from stepwell.errors import InvalidInput, Problem, ValidationFailed
from stepwell.model.draft import Draft, Planned
from stepwell.model.ids import Id, check_id, check_key, id_text
from stepwell.model.limits import Limits
from stepwell.model.mutation import (
    AddToken,
    CancelScopeMutation,
    EnterScope,
    ExitScope,
    IncrementStepCount,
    Mutation,
    PatchContext,
    RecordStep,
    RemoveToken,
    SetContext,
    SetLoop,
    SetMetadata,
    SetStatus,
    SetTrigger,
    SetVariable,
    UpdateToken,
    WriteState,
)
from stepwell.model.record import (
    LoopContext,
    Metadata,
    StepOutput,
    Token,
    Trigger,
    decode_token,
    encode_loop,
    encode_step,
    encode_token,
    encode_trigger,
)
from stepwell.model.repeated_commit import Computed
from stepwell.model.scope import Scope
from stepwell.model.scoped_operations import ABSENT, Delete, Increment, Put, StateOp
from stepwell.model.validation import refusal
from stepwell.model.value import Value, canonical, decode

__all__ = ["Buffer", "BufferedScope", "HasScope", "RefusedChange", "check_number", "check_revision", "scope_of", "ttl_ms"]

T = TypeVar("T")
Raw = msgspec.Raw


class HasScope(Protocol):
    """An object that has a scope of state."""

    @property
    def scope(self) -> Scope:
        """The scope."""
        ...


def scope_of(scope: Scope | HasScope) -> Scope:
    """Return the ``Scope`` of a scope or of a part of ``well.state``. Raise ``InvalidInput`` for anything else."""
    found = scope if isinstance(scope, Scope) else getattr(scope, "scope", None)
    if not isinstance(found, Scope):
        raise InvalidInput(f"a scope is a Scope or a part of well.state, such as well.state.globals, not {scope!r}")
    return found


class Buffer:
    """The changes of one transaction, in order.

    Every call takes a copy of its arguments. Each change is checked against the state as the earlier changes leave it, when
    the transaction commits: ``ValidationFailed`` then lists every fault of the batch, and nothing was written.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._batch: list[Planned] = []

    def set_context(self, context: Mapping[str, Value]) -> None:
        """Replace the context.

        - ``context``: a dict of values.
        """
        self._add("set_context", lambda: SetContext(Raw(self._object(context, "the context"))))

    def update_context(self, change: Callable[[dict[str, Value]], Mapping[str, Value]]) -> None:
        """Change the context by a function that gets a copy of it and returns the new one.

        The function is called at the commit, so it sees the earlier changes of this transaction.

        - ``change``: a function from a dict to a dict of values.

        Example:

            tx.update_context(lambda context: {**context, "paid": True})
        """
        advice = "use set_context to replace it by a dict"
        self._add_later(change, advice, Computed("update_context", PatchContext, lambda draft: self._context_patch(draft, change)))

    def set_variable(self, name: str, value: Value) -> None:
        """Set a variable; the last write wins.

        - ``name``: the variable's name.
        - ``value``: None, a bool, number or text, or a list or dict of these.
        """
        self._add(
            "set_variable",
            lambda: SetVariable(
                check_key(name, "a variable's name", self._limits.key_bytes),
                Raw(canonical(value, self._limits, what=f"variable {name!r}")),
            ),
        )

    def set_trigger(self, trigger: Trigger | Value) -> None:
        """Record what started the execution, once.

        - ``trigger``: a trigger such as ``ManualTrigger``, or any value.

        Refused at the commit with ``AlreadyRecorded`` if there is one.
        """
        self._add("set_trigger", lambda: SetTrigger(Raw(encode_trigger(trigger, self._limits))))

    def record_step(self, step: StepOutput) -> None:
        """Record a step's output under its ``node_name``, once.

        - ``step``: the output with its name and times.

        Refused at the commit with ``AlreadyRecorded`` if there is one.
        """
        # Not through _add: most transactions do only this, and a function inside a function costs a microsecond.
        try:
            data = encode_step(step, self._limits)  # first, since it says what a step is
            self._batch.append(RecordStep(step.node_name, Raw(data)))
        except (ValidationFailed, AttributeError) as error:
            self._refuse("record_step", error)

    def set_loop_context(self, loop: LoopContext) -> None:
        """Replace the position of a loop.

        - ``loop``: the position, with the id of its loop.
        """
        self._add("set_loop_context", lambda: SetLoop(loop=Raw(encode_loop(loop, self._limits)), loop_id=id_text(loop.loop_id)))

    def add_token(self, token_id: Id, *, node: str, scope: Id = "root", value: Value = None) -> None:
        """Add a control-flow token.

        - ``token_id``: its id, which must be new.
        - ``node``: the node where it stands.
        - ``scope``: the cancel scope that it belongs to; it must exist and not be cancelled.
        - ``value``: a value that the token carries.
        """
        token_id = id_text(token_id)
        token = Token(token_id, node, id_text(scope), value)
        self._add("add_token", lambda: AddToken(token_id, Raw(encode_token(token, self._limits))))

    def remove_token(self, token_id: Id) -> None:
        """Remove a token.

        - ``token_id``: the token's id.

        Refused at the commit if there is none with this id.
        """
        self._add("remove_token", lambda: RemoveToken(check_key(token_id, "token_id", self._limits.key_bytes)))

    def update_token(self, token_id: Id, change: Callable[[Token], Token | Mapping[str, Value]]) -> None:
        """Change a token by a function, which is called at the commit.

        - ``token_id``: the token's id.
        - ``change``: a function from the ``Token`` to a ``Token``, or to a dict with some of ``node``, ``scope`` and
          ``value``.

        Refused if the token does not exist or is cancelled.
        """
        advice = "such as lambda token: {'node': 'paid'}"
        token_id = id_text(token_id)
        make = Computed("update_token", UpdateToken, lambda draft: self._token_update(draft, token_id, change), token_id)
        self._add_later(change, advice, make)

    def enter_scope(self, scope_id: Id, parent: Id = "root") -> None:
        """Open a cancel scope inside another.

        - ``scope_id``: its id, which must be new.
        - ``parent``: the scope that it is inside of.

        Refused if the id exists, or the parent does not exist or is cancelled.
        """
        most = self._limits.key_bytes
        self._add("enter_scope", lambda: EnterScope(check_id(scope_id, "scope_id", most), check_id(parent, "parent", most)))

    def exit_scope(self, scope_id: Id) -> None:
        """Close a cancel scope.

        - ``scope_id``: the scope's id.

        Refused if it is ``root``, does not exist, or still holds tokens or scopes.
        """
        self._add("exit_scope", lambda: ExitScope(check_id(scope_id, "scope_id", self._limits.key_bytes)))

    def cancel_scope(self, scope_id: Id) -> None:
        """Cancel a scope with all tokens and scopes inside.

        - ``scope_id``: the scope's id.

        Refused if it does not exist.
        """
        self._add("cancel_scope", lambda: CancelScopeMutation(check_id(scope_id, "scope_id", self._limits.key_bytes)))

    def increment_step_count(self) -> None:
        """Add one to the step count."""
        self._batch.append(IncrementStepCount())

    def set_metadata(self, metadata: Mapping[str, Value]) -> None:
        """Replace the free metadata of the execution.

        - ``metadata``: a dict of values.
        """
        self._add("set_metadata", lambda: SetMetadata(Raw(self._object(metadata, "the metadata"))))

    def set_status(self, status: str) -> None:
        """Change the status of the execution.

        - ``status``: the name of the new status.

        Refused if its present status has no such transition.
        """
        self._add("set_status", lambda: SetStatus(str(status)))

    def state(self, scope: Scope | HasScope) -> BufferedScope:
        """Return a scope of state whose writes land with this transaction.

        - ``scope``: a ``Scope``, or a part of ``well.state``.

        Raise ``InvalidInput`` for anything else.

        Example:

            tx.state(well.state.workspace("acme")).set("last", "order-7")
        """
        return BufferedScope(self, scope_of(scope), self._limits)

    def add(self, mutation: Mutation) -> None:
        """Add a mutation that was checked elsewhere."""
        self._batch.append(mutation)

    def _check_engine_driven(self, identity: Metadata) -> None:
        """Raise ``ValidationFailed`` for changes that only the engine makes to an execution that it runs."""
        refusals = [
            Problem(ValidationFailed.code, _not_yours(identity), f"change {number} ({name})")
            for number, item in enumerate(self._batch, 1)
            if (name := _ENGINES_OWN.get(item.kind if isinstance(item, Computed) else type(item))) is not None
        ]
        for number, item in enumerate(self._batch, 1):
            if isinstance(item, SetVariable) and item.name.startswith("$"):
                text = f"variable {item.name!r} is Stepwell's own; choose a name that does not begin with $"
                refusals.append(Problem(InvalidInput.code, text, f"change {number} (set_variable)"))
        if refusals:
            raise ValidationFailed(refusals)

    def batch(self) -> list[Planned]:
        """Return the collected changes, in order."""
        return list(self._batch)

    def drop(self) -> None:
        """Drop the collected changes."""
        self._batch.clear()

    def state_ops(self) -> list[StateOp]:
        """Return the operations on scoped state. Raise ``ValidationFailed`` with every fault of the batch."""
        ops: list[StateOp] = []
        problems: list[Problem] = []
        for number, item in enumerate(self._batch, 1):
            if isinstance(item, WriteState):
                ops.append(item.op)
            elif isinstance(item, RefusedChange):
                where = f"change {number} ({item.__name__})"
                problems += [Problem(each.code, each.message, where) for each in item.error.errors]
        if problems:
            raise refusal(problems)
        return ops

    def write_state(self, make: Callable[[], StateOp]) -> None:
        """Add an operation on scoped state."""
        self._add("state", lambda: WriteState(make()))

    def _add(self, name: str, make: Callable[[], Mutation]) -> None:
        """Add a mutation. A fault in its arguments is kept and raised at the commit, with all others."""
        try:
            self._batch.append(make())
        except (ValidationFailed, AttributeError) as error:
            self._refuse(name, error)

    def _add_later(self, change: object, advice: str, computed: Computed) -> None:
        """Take a change that a user's function makes at the commit."""
        name = computed.__name__
        if callable(change):
            self._batch.append(computed)
        else:
            self._refuse(name, InvalidInput(f"{name} takes a function of what is there, not {type(change).__name__}; {advice}"))

    def _refuse(self, name: str, error: ValidationFailed | AttributeError) -> None:
        is_known = isinstance(error, ValidationFailed)
        self._batch.append(RefusedChange(name, error if is_known else InvalidInput(f"the argument has the wrong type: {error}")))

    def _object(self, value: object, what: str) -> bytes:
        if not isinstance(value, Mapping):
            raise InvalidInput(f"{what} must be a dict, not {type(value).__name__}")
        return canonical(dict(cast("Mapping[str, Value]", value)), self._limits, what=what)

    def _context_patch(self, draft: Draft, change: Callable[[dict[str, Value]], Mapping[str, Value]]) -> Mutation:
        before = {key: draft.get("context", key) or b"null" for key in draft.keys("context")}
        after = change({key: decode(data) for key, data in before.items()})
        if not isinstance(after, Mapping):
            raise InvalidInput(f"the function given to update_context gave back {type(after).__name__}, not a dict")
        self._object(after, "the context")  # the limits hold for the whole, as in set_context
        fresh = {key: canonical(value, self._limits, what=f"context key {key!r}") for key, value in after.items()}
        changed = {key: Raw(data) for key, data in fresh.items() if before.get(key) != data}
        return PatchContext(set=changed, remove=sorted(before.keys() - fresh.keys()))

    def _token_update(self, draft: Draft, token_id: str, change: Callable[[Token], Token | Mapping[str, Value]]) -> Mutation:
        data = draft.get("tokens", check_key(token_id, "token_id", self._limits.key_bytes))
        if data is None:
            raise ValidationFailed(f"there is no token {token_id!r}; add it first")
        token = decode_token(data)
        after = change(token)
        if isinstance(after, Mapping):
            unknown = after.keys() - {"node", "scope", "value"}
            if unknown:
                raise InvalidInput(f"a token has the fields node, scope and value, not {', '.join(sorted(unknown))}")
            after = token.replace(**after)
        if not isinstance(after, Token):
            raise InvalidInput(f"the function given to update_token gave back {type(after).__name__}, not a Token or dict")
        return UpdateToken(token_id, Raw(encode_token(after, self._limits)))


_ENGINES_OWN: dict[type, str] = {
    AddToken: "add_token",
    RemoveToken: "remove_token",
    UpdateToken: "update_token",
    EnterScope: "enter_scope",
    ExitScope: "exit_scope",
    CancelScopeMutation: "cancel_scope",
    SetStatus: "set_status",
    SetTrigger: "set_trigger",
    SetLoop: "set_loop_context",
    RecordStep: "record_step",
    IncrementStepCount: "increment_step_count",
}
"""The mutations of a running execution that only the engine makes, and the call that asks for each."""


def _not_yours(identity: Metadata) -> str:
    return (
        f"execution {identity.execution_id!r} is run by a worker, which keeps its tokens, scopes, steps and status; a transaction "
        "may change its context, variables, metadata and scoped state; use run.signal, run.cancel or run.retry to steer it"
    )


class BufferedScope:
    """Writes to one scope of state that land with a transaction or a step's output.

    Conditions are checked at the commit: if one does not hold, nothing of the transaction is written.
    """

    def __init__(self, buffer: Buffer, scope: Scope, limits: Limits) -> None:
        self._buffer, self._path, self._limits = buffer, scope.path, limits

    def __repr__(self) -> str:
        return f"<BufferedScope {self._path!r}>"

    def set(self, key: str, value: Value, ttl: Span | None = None, *, sliding: bool = False) -> None:
        """Set a key.

        - ``key``: the key.
        - ``value``: the value.
        - ``ttl``: after this time the key is gone; None keeps it for ever.
        - ``sliding``: every use starts the ``ttl`` anew.
        """
        self._put(key, value, ttl, sliding, None)

    def set_many(self, values: Mapping[str, Value], ttl: Span | None = None, *, sliding: bool = False) -> None:
        """Set several keys.

        - ``values``: the new values by key.
        - ``ttl``: after this time the keys are gone; None keeps them for ever.
        - ``sliding``: every use starts the ``ttl`` anew.
        """
        if not isinstance(values, Mapping):
            raise InvalidInput(f"set_many takes a dict of keys and values, not {type(values).__name__}")
        for key, value in values.items():
            self.set(key, value, ttl, sliding=sliding)

    def set_if_absent(self, key: str, value: Value, ttl: Span | None = None, *, sliding: bool = False) -> None:
        """Set a key that must not exist; the commit raises ``Conflict`` if it does.

        - ``key``: the key.
        - ``value``: the value.
        - ``ttl``: after this time the key is gone; None keeps it for ever.
        - ``sliding``: every use starts the ``ttl`` anew.
        """
        self._put(key, value, ttl, sliding, ABSENT)

    def compare_and_set(self, key: str, value: Value, *, revision: int, ttl: Span | None = None) -> None:
        """Set a key that must be at a revision; the commit raises ``Conflict`` if it is at another.

        - ``key``: the key.
        - ``value``: the new value.
        - ``revision``: the revision that ``entry`` gave; 0 if the key must be absent.
        - ``ttl``: after this time the key is gone; None keeps it for ever.
        """
        self._put(key, value, ttl, sliding=False, expected=revision, is_compared=True)

    def delete(self, key: str) -> None:
        """Delete a key; nothing happens if it is absent.

        - ``key``: the key.
        """
        self._write(lambda: Delete(self._path, self._key(key)))

    def increment(self, key: str, by: float = 1) -> None:
        """Add to a number; an absent key counts as 0.

        - ``key``: the key.
        - ``by``: what to add.

        The commit is refused if the value is not a number.
        """
        self._write(lambda: Increment(self._path, self._key(key), check_number(by)))

    def _put(
        self,
        key: str,
        value: Value,
        ttl: Span | None,
        sliding: bool,
        expected: int | None,
        *,
        is_compared: bool = False,
    ) -> None:
        self._write(
            lambda: Put(
                self._path,
                self._key(key),
                Raw(canonical(value, self._limits, what=f"state key {key!r}")),
                ttl_ms=ttl_ms(ttl, sliding=sliding),
                sliding=sliding,
                expected=check_revision(expected) if is_compared else expected,
            )
        )

    def _write(self, make: Callable[[], StateOp]) -> None:
        self._buffer.write_state(make)

    def _key(self, key: str) -> str:
        return check_key(key, "a state key", self._limits.key_bytes)


def ttl_ms(ttl: Span | None, *, sliding: bool = False) -> int | None:
    """Return a TTL in whole milliseconds. Raise ``InvalidInput`` for one that can never be accepted."""
    if not isinstance(sliding, bool):
        raise InvalidInput(f"sliding is True or False, not {sliding!r}")
    if ttl is None:
        if sliding:
            raise InvalidInput("a sliding TTL needs a ttl")
        return None
    return round(seconds_of(ttl, "ttl", least=0.001) * 1000)


def check_number(number: object) -> int | float:
    """Return a finite number of at most 64 bits. Raise ``InvalidInput`` for any other."""
    if isinstance(number, bool) or not isinstance(number, int | float) or number - number != 0:
        raise InvalidInput(f"a counter is changed by a finite number, not {number!r}")
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise InvalidInput("a counter is changed by an integer of 64 bits at most")
    return number


def check_revision(revision: object) -> int:
    """Return a revision that a key can be compared with. Raise ``InvalidInput`` for anything else."""
    if type(revision) is not int or not 0 <= revision < 2**63:
        raise InvalidInput(f"a revision is a whole number (0: the key must be absent), not {revision!r}")
    return revision


class RefusedChange:
    """A call whose arguments were refused, in the place of the mutation it should have been."""

    def __init__(self, name: str, error: ValidationFailed) -> None:
        self.__name__, self.error = name, error

    def __call__(self, _: Draft) -> Mutation:
        raise self.error
