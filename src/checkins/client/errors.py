"""Errors of the device SDK: the service fails, or the device refuses the campaign."""

from __future__ import annotations

import errno

from checkins.errors import CheckinsError, InvalidValue


class ServiceFailed(CheckinsError, OSError):
    """The service cannot be reached, responds incorrectly, or was rolled back to an older state.

    The device's durable state is kept. A later call continues from it if the slot has not passed.
    """

    def __init__(self, url: str, why: str) -> None:
        OSError.__init__(self, errno.EIO, why, url)

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs to raise the error in another process."""
        return type(self), (self.filename, self.strerror)


class CampaignRefused(InvalidValue):
    """The device does not take part in this campaign, and sends nothing more for it."""
