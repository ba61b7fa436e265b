"""A state machine as a table: which event is allowed in which phase, and where it may lead.

A machine has no clock, no sockets and no randomness. Time, messages and random draws are its
events; the actions of its driver are its effects. A driver follows four rules:

1. effects are performed in their order;
2. an effect named ``Record...`` makes the state that came with it durable, whole, before the next
   effect is performed; nothing else needs to be durable;
3. a state that waits for its record (CHOOSING, CLOSING, DRAWN, PRIVATIZED) gets the event
   ``...Recorded`` once it is durable: at once, or after a restart;
4. a token belongs to one run of one campaign and a receipt is given out once, ever: no message of
   one run can mean anything in another. After the last slot, clients are notified that the next
   began.

The table is enforced at every step, so the diagrams drawn from it are correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from checkins.errors import OutOfOrder, ProtocolViolation


class Event:
    """Something that happened: on the clock, on the disk, or a random draw."""

    __slots__ = ()


class Message(Event):
    """An event that the other side caused; one that is not allowed is the other side's fault."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class SlotBegan(Event):
    """The clock has come to the beginning of a slot: its check-ins are open."""

    slot: int


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

    def __init__(self, name: str, *, first: Enum) -> None:
        self.name = name
        self.phases = type(first)
        self.first = first
        self._table: dict[tuple[Enum, type[Event]], Transition] = {}

    @property
    def events(self) -> tuple[type[Event], ...]:
        """Every event that some phase allows."""
        return tuple(dict.fromkeys(event for _, event in self._table))

    def on(
        self, event: type[Event], moves: Mapping[Enum, Enum | tuple[Enum, ...]] | tuple[Enum, ...]
    ) -> Callable[[R], R]:
        """Let a rule handle ``event`` in the phases of ``moves``, with the phases it may lead to.

        A tuple of phases: the event is allowed in each of them and does not change the phase.
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
        """Return the next state and the effects; an event that is refused changes nothing."""
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
        """Return the table as a Mermaid state diagram, without arrows from a phase to itself."""
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
