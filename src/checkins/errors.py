"""The errors of this package, ordered by who caused them, with the exit status of a command.

CheckinsError
├── InvalidValue         the caller gave a value outside its allowed range      (exit 2)
│   ├── NotCovered       no theorem covers this configuration, so nothing is certified
│   ├── DeltaExhausted   the amounts that are charged to delta use up all of it
│   ├── TooManyRuns      the accountant cannot compose the epsilons of so many runs
│   ├── WrongPopulation  the number of clients contradicts the campaign or the data
│   └── InvalidData      a data file cannot be read
│       └── InvalidCell  a row, column or cell of the file is wrong
├── MissingPackage       a package of an extra is not installed                  (exit 2)
├── ComputationFailed    this package could not compute a bound safely          (exit 1)
├── TrainingFailed       the code that trains on a device failed                (exit 1)
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


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message.

    >>> first_line(KeyError("x"))
    "KeyError: 'x'"
    """
    return f"{type(error).__name__}: {error}".partition("\n")[0]


class NotCovered(InvalidValue):
    """No theorem covers the configuration that ``name = value`` asks for."""


class DeltaExhausted(InvalidValue):
    """Nothing is left of delta after the charge for ``name = value``.

    Delta is charged for the distance between implementation and design (``variation``), and for
    clients who disclose what they see (``curious``).
    """


class TooManyRuns(InvalidValue):
    """The accountant cannot compose the epsilons of so many runs."""


class WrongPopulation(InvalidValue):
    """The number of clients contradicts the campaign or the data."""


class InvalidData(InvalidValue):
    """A data file cannot be read."""


class InvalidCell(InvalidData):
    """A row, column or cell of a data file is wrong. ``name`` says which one."""


class MissingPackage(CheckinsError, ModuleNotFoundError):
    """A package that only some roles need is not installed. The message says what to install.

    >>> print(MissingPackage("checkins.accounting", "scipy", "accounting"))
    checkins.accounting needs scipy, which is not installed: pip install 'checkins[accounting]'
    """

    def __init__(self, needed_by: str, package: str, extra: str) -> None:
        self.needed_by, self.extra = needed_by, extra
        problem = f"{needed_by} needs {package}, which is not installed"
        super().__init__(f"{problem}: pip install 'checkins[{extra}]'", name=package)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the constructor and its arguments, so that the error can be pickled."""
        return type(self), (self.needed_by, self.name, self.extra)


class ComputationFailed(CheckinsError, ArithmeticError):
    """A bound could not be computed with the rounding that this package guarantees."""


class TrainingFailed(CheckinsError):
    """The code of a device's owner that trains raised an exception or returned no valid update."""


class ProtocolViolation(CheckinsError):
    """The peer sent a message that the protocol does not allow. The state did not change."""


class OutOfOrder(CheckinsError):
    """The code that drives a state machine sent a wrong event. The state did not change."""
