"""The errors of this package, by whose fault they are.

CheckinsError
├── InvalidValue         a value the caller gave is outside its allowed range   (exit 2)
│   ├── NotCovered       no theorem covers this configuration: we refuse, never guess
│   ├── DeltaExhausted   the charges to delta leave nothing of it for the design
│   ├── TooManyRuns      a list of runs is too long to be composed
│   ├── WrongPopulation  the number of clients contradicts the campaign or the data
│   └── InvalidData      a file of data cannot be read
│       └── InvalidCell  a row or cell of it is wrong
├── ComputationFailed    our own fault: a bound could not be computed safely    (exit 1)
├── ProtocolViolation    the peer's fault: a message that the protocol does not allow now
└── OutOfOrder           our own fault: a driver fed a machine an event it may not have now
"""

from __future__ import annotations


class CheckinsError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidValue(CheckinsError, ValueError):
    """A value is outside its allowed range; names the value and the remedy.

    >>> print(InvalidValue("delta", 2.0, "must lie strictly between 0 and 1"))
    delta = 2.0: must lie strictly between 0 and 1
    """

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        super().__init__(f"{name} = {value!r}: {expected}")

    def __reduce__(self) -> tuple[object, ...]:
        """Return the constructor and its arguments, for another process to raise the error."""
        return type(self), (self.name, self.value, self.expected)


def first_line(error: Exception) -> str:
    """Return the type and message of an error of other code, on one line.

    >>> first_line(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{type(error).__name__}: {error}".partition("\n")[0]


class NotCovered(InvalidValue):
    """No theorem covers the configuration that ``name = value`` asks for."""


class DeltaExhausted(InvalidValue):
    """The total variation or exposure ``name = value`` exceeds delta."""


class TooManyRuns(InvalidValue):
    """The list of runs is longer than the accountant composes."""


class WrongPopulation(InvalidValue):
    """The number of clients contradicts the campaign or the data."""


class InvalidData(InvalidValue):
    """A file of data cannot be read."""


class InvalidCell(InvalidData):
    """A row, column or cell of a file is wrong; ``name`` says which one."""


class ComputationFailed(CheckinsError, ArithmeticError):
    """A bound could not be computed to the safety this package promises."""


class ProtocolViolation(CheckinsError):
    """A message from the other side that the protocol does not allow; nothing was changed by it."""


class OutOfOrder(CheckinsError):
    """A driver broke the order of events it is responsible for; nothing was changed by it."""
