"""The ledger: an append-only record of a population's campaigns and of their closed slots.

Anyone can recompute the models and the certificate from a ledger.
"""

from checkins.ledger.chain import Ledger, Run
from checkins.ledger.entry import Closed, InvalidLedger, Opened, Reason, SlotClosed
from checkins.ledger.file import LedgerBusy, LedgerFile, lines
from checkins.ledger.verification import Verification, certificate, earlier_of, spending_of, verify

__all__ = [
    "Closed",
    "InvalidLedger",
    "Ledger",
    "LedgerBusy",
    "LedgerFile",
    "Opened",
    "Reason",
    "Run",
    "SlotClosed",
    "Verification",
    "certificate",
    "earlier_of",
    "lines",
    "spending_of",
    "verify",
]
