"""The append-only record that a certificate is recomputed from."""

from checkins.protocol.ledger.chain import Ledger, Run
from checkins.protocol.ledger.entry import Closed, Opened, Reason, SlotClosed
from checkins.protocol.ledger.file import LedgerBusy, LedgerFile, lines
from checkins.protocol.ledger.line import InvalidLedger
from checkins.protocol.ledger.price import certificate, earlier_of, spending_of
from checkins.protocol.ledger.verification import Verification, verify

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
