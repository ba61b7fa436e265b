"""Random check-ins for Flower: apps as devices of a coordinator, and inside Flower's own server.

Only this package and its subprocesses import ``flwr``, which needs an environment of its own
(``constraints/flower.txt``).
"""

from typing import TYPE_CHECKING

from checkins.optional_imports import exports_on_first_use

if TYPE_CHECKING:
    from checkins.flower.trainer import ClientAppTrainer, device

__all__ = ["ClientAppTrainer", "device"]

if not TYPE_CHECKING:
    __getattr__ = exports_on_first_use(__name__, __all__, "trainer")
