"""The append-only record that a certificate is recomputed from."""

from checkins.ledger.chain import Ledger, Run
from checkins.ledger.entry import Closed, Opened, Reason, SlotClosed
from checkins.ledger.file import LedgerBusy, LedgerFile, lines
from checkins.ledger.line import InvalidLedger
from checkins.ledger.spending import certificate, earlier_of, spending_of
from checkins.ledger.verification import Verification, verify

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
