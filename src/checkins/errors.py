"""The errors of this package, ordered by who caused them.

CheckinsError
├── InvalidValue         the caller gave a value outside its allowed range      (exit 2)
│   ├── NotCovered       no theorem covers this configuration, so nothing is certified
│   ├── DeltaExhausted   the charges to delta leave nothing for the design
│   ├── TooManyRuns      a list of runs is too long to be composed
│   ├── WrongPopulation  the number of clients contradicts the campaign or the data
│   └── InvalidData      a data file cannot be read
│       └── InvalidCell  a row, column or cell of the file is wrong
├── ComputationFailed    this package could not compute a bound safely          (exit 1)
├── ProtocolViolation    the peer sent a message that the protocol does not allow now
└── OutOfOrder           this package gave a state machine an event that it does not allow now
"""

from __future__ import annotations


class CheckinsError(Exception):
    """Base class of every error that this package raises deliberately."""


class InvalidValue(CheckinsError, ValueError):
    """A value is outside its allowed range. The message says which value and what is allowed.

    >>> print(InvalidValue("delta", 2.0, "must lie strictly between 0 and 1"))
    delta = 2.0: must lie strictly between 0 and 1
    """

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name = name
        self.value = value
        self.expected = expected
        super().__init__(f"{name} = {value!r}: {expected}")

    def __reduce__(self) -> tuple[object, ...]:
        """Return the constructor and its arguments, so that the error can be pickled."""
        return type(self), (self.name, self.value, self.expected)


def first_line(error: Exception) -> str:
    """Return the type and the first line of the message of an error from other code.

    >>> first_line(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{type(error).__name__}: {error}".partition("\n")[0]


class NotCovered(InvalidValue):
    """No theorem covers the configuration that ``name = value`` asks for."""


class DeltaExhausted(InvalidValue):
    """The charge for the total variation or exposure ``name = value`` exceeds delta."""


class TooManyRuns(InvalidValue):
    """The list of runs is too long for the accountant to compose."""


class WrongPopulation(InvalidValue):
    """The number of clients contradicts the campaign or the data."""


class InvalidData(InvalidValue):
    """A data file cannot be read."""


class InvalidCell(InvalidData):
    """A row, column or cell of a file is wrong. ``name`` says which."""


class ComputationFailed(CheckinsError, ArithmeticError):
    """A bound could not be computed as safely as this package promises."""


class ProtocolViolation(CheckinsError):
    """The peer sent a message that the protocol does not allow. It changed nothing."""


class OutOfOrder(CheckinsError):
    """The code that drives a state machine sent an event in the wrong order. It changed nothing."""
