"""A state machine as a table: which event is allowed in which phase, and where it may lead.

A machine has no clock, no sockets and no randomness. Time, messages and random draws come in as
events; what must be done goes out as effects. Its driver keeps four rules:

1. effects are performed in their order;
2. an effect named ``Record...`` makes the state that came with it durable, whole, before the next
   effect is performed; nothing else needs to be durable;
3. a state that waits for its record (CHOOSING, CLOSING, DRAWN, PRIVATIZED) gets the event
   ``...Recorded`` once it is durable: at once, or after a restart;
4. a token belongs to one run of one campaign and a receipt is given out once, ever: no message of
   one run can mean anything in another. After the last slot, clients are
   notified that the next began.

The table is enforced at every step, so the diagrams drawn from it are true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from checkins.errors import OutOfOrder, ProtocolViolation


class Event:
    """Something that happened. A driver makes it: the clock, the disk, or randomness."""

    __slots__ = ()


class Message(Event):
    """An event that the other side caused; one that is not allowed is the other side's fault."""

    __slots__ = ()


class Effect:
    """Something the driver must do."""

    __slots__ = ()


Effects = tuple[Effect, ...]


class HasPhase(Protocol):
    @property
    def phase(self) -> Enum: ...


S = TypeVar("S", bound=HasPhase)
R = TypeVar("R", bound=Callable[[Any, Any], tuple[Any, Effects]])


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table; ``rule`` decides among the phases in ``to``."""

    start: Enum
    event: type[Event]
    to: tuple[Enum, ...]
    rule: Callable[[Any, Any], tuple[Any, Effects]]


class Machine(Generic[S]):
    """The table of one machine, filled by the decorator ``on``."""

    def __init__(
        self, name: str, *, phases: type[Enum], events: Iterable[type[Event]], first: Enum
    ) -> None:
        self.name = name
        self.phases = phases
        self.events = tuple(events)
        self.first = first
        self._table: dict[tuple[Enum, type[Event]], Transition] = {}

    def on(
        self, event: type[Event], moves: Mapping[Enum, Enum | tuple[Enum, ...]]
    ) -> Callable[[R], R]:
        """Let a rule handle ``event``; ``moves`` says in which phases, and where it may lead."""

        def register(rule: R) -> R:
            for start, to in moves.items():
                key = (start, event)
                if key in self._table or event not in self.events:
                    raise OutOfOrder(f"{self.name}: {start.name} and {event.__name__} clash")
                ends = to if isinstance(to, tuple) else (to,)
                self._table[key] = Transition(start, event, ends, rule)
            return rule

        return register

    def step(self, state: S, event: Event) -> tuple[S, Effects]:
        """The next state, and what the driver must do. A refusal changes nothing."""
        transition = self._table.get((state.phase, type(event)))
        if transition is None:
            name = type(event).__name__
            refusal = f"{name} is not allowed while the {self.name} is {state.phase.name}"
            raise ProtocolViolation(refusal) if isinstance(event, Message) else OutOfOrder(refusal)
        after, effects = transition.rule(state, event)
        if after.phase not in transition.to:
            raise OutOfOrder(f"{self.name}: {state.phase.name} may not become {after.phase.name}")
        return after, effects

    def replay(self, state: S, events: Iterable[Event]) -> S:
        """The state that a record of events leads to."""
        for event in events:
            state, _ = self.step(state, event)
        return state

    def __iter__(self) -> Iterator[Transition]:
        return iter(self._table.values())

    def allows(self, phase: Enum, event: type[Event]) -> bool:
        return (phase, event) in self._table

    def diagram(self) -> str:
        """The table as a Mermaid state diagram; an arrow from a phase to itself is not drawn."""
        arrows: dict[tuple[str, str], list[str]] = {}
        for transition in self:
            for end in transition.to:
                if end is not transition.start:
                    names = arrows.setdefault((transition.start.name, end.name), [])
                    names.append(transition.event.__name__)
        lines = ["stateDiagram-v2", f"    [*] --> {self.first.name}"]
        lines += [f"    {a} --> {b}: {', '.join(names)}" for (a, b), names in arrows.items()]
        leaving = {start for start, _ in arrows}
        lines += [f"    {phase.name} --> [*]" for phase in self.phases if phase.name not in leaving]
        return "\n".join(lines)
