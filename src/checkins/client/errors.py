"""Why a device does not take part: the service's fault, or the owner's wish."""

from __future__ import annotations

import errno

from checkins.errors import CheckinsError, InvalidValue


class ServiceFailed(CheckinsError, OSError):
    """The service cannot be reached, says what it must not say, or was set back to an older state.

    What is durable stays as it is: a later run goes on from there, if its slot has not passed.
    """

    def __init__(self, url: str, why: str) -> None:
        OSError.__init__(self, errno.EIO, why, url)

    def __reduce__(self) -> tuple[object, ...]:
        """What another process needs to raise it again."""
        return type(self), (self.filename, self.strerror)


class CampaignRefused(InvalidValue):
    """The device does not take part in this campaign, and nothing was sent for it."""
