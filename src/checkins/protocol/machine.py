"""A state machine as a table: the events that each phase allows, and the phases they lead to.

A state machine has no clock, no sockets and no randomness. It receives time, messages and random
draws as events, and returns effects, which are the actions that its driver must perform. A driver
follows four rules:

1. It performs the effects of a step in their order.
2. For an effect named ``Record...``, it saves the complete state that ``step`` returned, and
   performs the next effect after the save is durable. Other effects need no save.
3. After the save in one of the phases CHOOSING (slot), CLOSING (server), DRAWN and PRIVATIZED
   (participant), it sends the event ``...Recorded`` to the state machine. After a restart it sends
   this event again.
4. It uses a token (a client's credential for one check-in) in one run of one campaign only, and
   never issues the same receipt (a client's pseudonym in one slot) twice, so a message of one run
   is not valid in another. After the last slot, it sends clients ``SlotBegan`` with the number of
   the slot that would follow, so that every client ends its participation.

Every step is checked against the table, so the diagrams that ``diagram`` draws from the table are
correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from checkins.errors import OutOfOrder, ProtocolViolation


class Event:
    """An input of a state machine: time passed, a save became durable, randomness was drawn."""

    __slots__ = ()


class Message(Event):
    """A message from the other side (client or server).

    If a phase does not allow a message, ``step`` raises ProtocolViolation. If it does not allow
    another event, ``step`` raises OutOfOrder.
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


State = TypeVar("State", bound=HasPhase)
Rule = TypeVar("Rule", bound=Callable[[Any, Any], tuple[Any, Effects]])


@dataclass(frozen=True, slots=True)
class Transition:
    """One row of the table. ``rule`` returns a state whose phase is one of ``next_phases``."""

    start: Enum
    event: type[Event]
    next_phases: tuple[Enum, ...]
    rule: Callable[[Any, Any], tuple[Any, Effects]]


class Machine(Generic[State]):
    """The table of one state machine. The decorator ``on`` adds rows to it."""

    def __init__(self, name: str, *, first_phase: Enum) -> None:
        self.name = name
        self.phases = type(first_phase)
        self.first_phase = first_phase
        self._table: dict[tuple[Enum, type[Event]], Transition] = {}

    @property
    def events(self) -> tuple[type[Event], ...]:
        """The types of the events that at least one phase allows."""
        return tuple(dict.fromkeys(event for _, event in self._table))

    def on(
        self, event: type[Event], moves: Mapping[Enum, Enum | tuple[Enum, ...]] | tuple[Enum, ...]
    ) -> Callable[[Rule], Rule]:
        """Register the decorated function as the rule for ``event``.

        The keys of ``moves`` are the phases in which the event is allowed, and the values are the
        phases that it may lead to. If ``moves`` is a tuple of phases, the event is allowed in each
        of them and does not change the phase.
        """

        def register(rule: Rule) -> Rule:
            table = dict(zip(moves, moves, strict=True)) if isinstance(moves, tuple) else moves
            for start, ends in table.items():
                if (start, event) in self._table:
                    name = event.__name__
                    raise OutOfOrder(f"{self.name}: {name} in {start.name} already has a rule")
                next_phases = ends if isinstance(ends, tuple) else (ends,)
                self._table[start, event] = Transition(start, event, next_phases, rule)
            return rule

        return register

    def step(self, state: State, event: Event) -> tuple[State, Effects]:
        """Return the next state and the effects of an event.

        Raises ProtocolViolation or OutOfOrder if the phase does not allow the event.
        """
        transition = self._table.get((state.phase, type(event)))
        if transition is None:
            name = type(event).__name__
            problem = f"{name} is not allowed while the {self.name} is {state.phase.name}"
            raise ProtocolViolation(problem) if isinstance(event, Message) else OutOfOrder(problem)
        next_state, effects = transition.rule(state, event)
        start, end = state.phase, next_state.phase
        if end not in transition.next_phases:
            raise OutOfOrder(f"{self.name}: {start.name} may not become {end.name}")
        return next_state, effects

    def replay(self, state: State, events: Iterable[Event]) -> State:
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
            for end in transition.next_phases:
                if end is not transition.start:
                    names = arrows.setdefault((transition.start.name, end.name), [])
                    names.append(transition.event.__name__)
        lines = ["stateDiagram-v2", f"    [*] --> {self.first_phase.name}"]
        for (start, end_name), names in arrows.items():
            lines.append(f"    {start} --> {end_name}: {', '.join(names)}")
        starts = {start for start, _ in arrows}
        lines += [f"    {phase.name} --> [*]" for phase in self.phases if phase.name not in starts]
        return "\n".join(lines)
