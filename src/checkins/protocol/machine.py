"""A state machine as a table: the events that each phase allows, and the phases they lead to.

A state machine has no clock, no sockets and no randomness. It receives time, messages and random
draws as events, and returns effects, which are the actions that its driver must perform. A driver
follows four rules:

1. It performs the effects of a step in their order.
2. For an effect named ``Record...``, it saves the complete state that ``step`` returned, and
   performs the next effect after the save is durable. Other effects need no save.
3. After the save in one of the phases CHOOSING, CLOSING, DRAWN and PRIVATIZED, it sends the event
   ``...Recorded`` to the state machine. After a restart it sends this event again.
4. It uses a token in one run of one campaign only, and never issues the same receipt twice, so a
   message of one run is not valid in another. After the last slot, it sends clients ``SlotBegan``
   with the number of the slot that would follow, so that every client ends.

Every step is checked against the table, so the diagrams drawn from the table are correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from checkins.errors import OutOfOrder, ProtocolViolation


class Event:
    """Something that happened: time passed, a save became durable, or randomness was drawn."""

    __slots__ = ()


class Message(Event):
    """A message from the other side (client or server).

    If it is not allowed, ``step`` raises ProtocolViolation. For other events it raises OutOfOrder.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SlotBegan(Event):
    """A slot has begun, and its check-ins are open."""

    slot: int


class Effect:
    """An action that the driver must perform."""

    __slots__ = ()


Effects = tuple[Effect, ...]


class HasPhase(Protocol):
    @property
    def phase(self) -> Enum: ...


S = TypeVar("S", bound=HasPhase)
R = TypeVar("R", bound=Callable[[Any, Any], tuple[Any, Effects]])


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table. ``rule`` returns the next state, whose phase must be one of ``to``."""

    start: Enum
    event: type[Event]
    to: tuple[Enum, ...]
    rule: Callable[[Any, Any], tuple[Any, Effects]]


class Machine(Generic[S]):
    """The table of one state machine. The decorator ``on`` adds rows to it."""

    def __init__(self, name: str, *, first: Enum) -> None:
        self.name = name
        self.phases = type(first)
        self.first = first
        self._table: dict[tuple[Enum, type[Event]], Transition] = {}

    @property
    def events(self) -> tuple[type[Event], ...]:
        """All types of events that at least one phase allows."""
        return tuple(dict.fromkeys(event for _, event in self._table))

    def on(
        self, event: type[Event], moves: Mapping[Enum, Enum | tuple[Enum, ...]] | tuple[Enum, ...]
    ) -> Callable[[R], R]:
        """Register the decorated function as the rule for ``event``.

        The keys of ``moves`` are the phases in which the event is allowed, and the values are the
        phases that it may lead to. If ``moves`` is a tuple of phases, the event is allowed in each
        of them and does not change the phase.
        """

        def register(rule: R) -> R:
            table = dict(zip(moves, moves, strict=True)) if isinstance(moves, tuple) else moves
            for start, to in table.items():
                if (start, event) in self._table:
                    raise OutOfOrder(f"{self.name}: {start.name} and {event.__name__} clash")
                ends = to if isinstance(to, tuple) else (to,)
                self._table[start, event] = Transition(start, event, ends, rule)
            return rule

        return register

    def step(self, state: S, event: Event) -> tuple[S, Effects]:
        """Return the next state and the effects of an event.

        Raises ProtocolViolation or OutOfOrder if the phase does not allow the event.
        """
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
        """Return the state after a sequence of events."""
        for event in events:
            state, _ = self.step(state, event)
        return state

    def __iter__(self) -> Iterator[Transition]:
        return iter(self._table.values())

    def allows(self, phase: Enum, event: type[Event]) -> bool:
        return (phase, event) in self._table

    def diagram(self) -> str:
        """Return the table as a Mermaid diagram, without arrows from a phase to itself."""
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
