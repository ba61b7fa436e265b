"""The hash chain of a ledger: the order in which entries are allowed, and the hash of the last.

One ledger belongs to one population. Its campaigns run one after another, and have the same
``population_id``, delta and adjacency, so that their epsilons can be composed (invariant 9 of
docs/invariants.md).

    opened, slot 1, slot 2, ..., slot k, closed,   opened, slot 1, ...

``Ledger`` is the state after the last entry. It is an immutable value without a file, and its size
does not grow with the number of slots.

A filter is the rule that composes the epsilons of campaigns whose parameters may have been chosen
after earlier releases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from numpy.typing import ArrayLike

from checkins.accounting import Design, Protocol
from checkins.accounting.filters import Block, Filter, choose_filter
from checkins.campaign import Budget, Campaign, RandomizerKind, campaign_from_canonical
from checkins.ledger.entry import (
    INITIAL_HASH,
    Closed,
    Entry,
    InvalidLedger,
    Line,
    NumberType,
    Opened,
    Reason,
    SlotClosed,
    pack_numbers,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a campaign, and how many of its slots are closed."""

    campaign: Campaign
    seal: str
    number: int
    dimension: int
    simulated: bool
    filter: Filter | None = None
    """The filter. None means that all parameters were fixed before the first release."""
    slots_closed: int = 0
    contributors: int | None = None
    """Number of reports so far under averaged updates. None under the other protocols."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The state after the last entry of a chain.

    ``entries`` is the number of entries. ``head`` is the hash of the last entry. ``running`` is the
    run in progress, or None. ``closed`` are the runs that are over.

    >>> Ledger().head == "0" * 64
    True
    """

    entries: int = 0
    head: str = INITIAL_HASH
    running: Run | None = None
    closed: tuple[Run, ...] = ()

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run, in order. The run in progress is the last."""
        return self.closed if self.running is None else (*self.closed, self.running)

    @property
    def filter(self) -> Filter | None:
        """The filter of the population. None before the first campaign is opened.

        The first entry fixes the filter, before anything is released. If the first entry names no
        filter, the Gaussian filter applies, because a later choice could depend on releases.
        """
        if not self.runs:
            return None
        return next((run.filter for run in self.runs if run.filter is not None), Filter())

    def opening(self, campaign: Campaign, *, model: ArrayLike, simulated: bool = False) -> Opened:
        """Return the entry that opens the next run of a campaign, with its initial ``model``."""
        seal = campaign.seal
        return Opened(
            campaign.canonical(),
            seal,
            self._next_run_number(seal),
            pack_numbers(model),
            simulated,
            self.filter or filter_for(campaign),
        )

    def _next_run_number(self, seal: str) -> int:
        return 1 + sum(run.seal == seal for run in self.runs)

    def append(self, entry: Entry) -> tuple[Ledger, bytes]:
        """Return the state after one more entry, and the line to write for the entry."""
        line = Line.of(entry, number=self.entries + 1, previous=self.head)
        return self._after_line(line), line.content

    def read(self, content: bytes) -> tuple[Ledger, Entry]:
        """Return the state after one more line of a file, and the entry of that line.

        Raise InvalidLedger if the line is invalid or cannot follow the last line.
        """
        line = Line.parse(content)
        if line.number != self.entries + 1:
            raise InvalidLedger(
                f"is entry {line.number}, but entry {self.entries + 1} is next:"
                " a line was removed, added or moved"
            )
        if line.previous != self.head:
            raise InvalidLedger("does not continue the line before it: one of the two was replaced")
        return self._after_line(line), line.entry

    def _after_line(self, line: Line) -> Ledger:
        entry = line.entry
        after = replace(self, entries=line.number, head=line.hash)
        if isinstance(entry, Opened):
            return replace(after, running=self._open_run(entry))
        if self.running is None:
            raise InvalidLedger("no campaign is open: a campaign must be opened first")
        if isinstance(entry, SlotClosed):
            return replace(after, running=_after_slot(self.running, entry))
        _check_closed(self.running, entry)
        return replace(after, running=None, closed=(*self.closed, self.running))

    def _open_run(self, entry: Opened) -> Run:
        if self.running is not None:
            raise InvalidLedger("the previous campaign is still open: it must be closed first")
        run = Run(
            _campaign_of(entry),
            entry.seal,
            entry.run,
            entry.dimension,
            entry.simulated,
            entry.filter,
        )
        expected = self._next_run_number(run.seal)
        if run.number != expected:
            raise InvalidLedger(f"is run {run.number} of this campaign, but {expected} is next")
        if run.number > run.campaign.repeats:
            raise InvalidLedger(
                f"this campaign already ran {run.campaign.repeats} times, as often as it declares"
            )
        if run.campaign.task is None or (run.campaign.missing and not run.simulated):
            raise InvalidLedger(
                f"a campaign without {', '.join(run.campaign.missing)} can be certified, not run"
            )
        if run.campaign.randomizer.kind is RandomizerKind.PRIVUNIT and not run.simulated:
            raise InvalidLedger("privunit has no exact device sampler: it can only be simulated")
        if run.campaign.randomizer.dimension not in (None, run.dimension):
            raise InvalidLedger(
                f"the campaign has dimension = {run.campaign.randomizer.dimension:,}, but the model"
                f" has {run.dimension:,} parameters"
            )
        if self.closed:
            _check_composable(self.closed[0], run)
            self._check_filter(run)
        return run

    def _check_filter(self, run: Run) -> None:
        """Raise InvalidLedger if the run changes the filter.

        A ledger in which no run names a filter may continue without a filter.
        """
        if run.filter is None and all(before.filter is None for before in self.closed):
            return
        if run.filter != self.filter:
            raise InvalidLedger(
                f"filter is {run.filter or 'absent'}, but the population's filter is {self.filter}."
                " It was fixed before the first release, and cannot be chosen after one"
            )


def filter_for(campaign: Campaign) -> Filter:
    """Return the filter for a population whose first campaign is ``campaign``."""
    return _filter_for(campaign.design, campaign.repeats, campaign.budget)


@lru_cache(maxsize=256)
def _filter_for(design: Design, repeats: int, budget: Budget) -> Filter:
    return choose_filter(
        Block((design,), repeats),
        epsilon=budget.epsilon,
        delta=budget.delta,
        adjacency=budget.adjacency,
    )


def _campaign_of(entry: Opened) -> Campaign:
    try:
        campaign = campaign_from_canonical(entry.campaign)
    except ValueError as error:  # InvalidValue is a ValueError
        raise InvalidLedger(f"the campaign cannot be read: {error}") from error
    if campaign.seal != entry.seal:
        raise InvalidLedger(f"the seal does not match the campaign, whose seal is {campaign.seal}")
    return campaign


def _check_composable(first_run: Run, run: Run) -> None:
    """Raise InvalidLedger if ``run`` cannot be composed with the first run of the ledger."""
    first, campaign = first_run.campaign, run.campaign
    if campaign.population_id != first.population_id:
        raise InvalidLedger(
            f"population_id is {campaign.population_id!r}, but the ledger is"
            f" for {first.population_id!r}: another population needs another ledger"
        )
    if first.population_id is None and run.seal != first_run.seal:
        raise InvalidLedger("campaigns without a population_id cannot share a ledger")
    for name in ("delta", "adjacency"):
        value, expected = getattr(campaign.budget, name), getattr(first.budget, name)
        if value != expected:
            raise InvalidLedger(
                f"{name} is {value}, but the ledger is for {expected}:"
                " campaigns with different values cannot be composed"
            )
    if run.simulated != first_run.simulated:
        raise InvalidLedger("real and simulated campaigns cannot share a ledger")


def _after_slot(run: Run, entry: SlotClosed) -> Run:
    _check_slot(run, entry)
    if entry.contributors is None:
        return replace(run, slots_closed=entry.slot)
    contributors = (run.contributors or 0) + entry.contributors
    return replace(run, slots_closed=entry.slot, contributors=contributors)


def _check_slot(run: Run, entry: SlotClosed) -> None:
    if entry.slot != run.slots_closed + 1 or entry.slot > run.campaign.design.slots:
        expected = f"slot {run.slots_closed + 1} of {run.campaign.design.slots:,} is next"
        if run.slots_closed == run.campaign.design.slots:
            expected = f"all {run.slots_closed:,} slots are over"
        raise InvalidLedger(f"is slot {entry.slot}, but {expected}")
    is_averaged = run.campaign.design.protocol is Protocol.AVERAGED
    if (entry.contributors is not None) != is_averaged:
        raise InvalidLedger(
            "averaged updates need the number of contributors"
            if is_averaged
            else f"the {run.campaign.design.protocol} protocol has no number of contributors"
        )
    least_reports = run.campaign.design.least_reports or 1
    is_empty = (
        entry.contributors < least_reports
        if entry.contributors is not None
        else entry.slot <= run.campaign.warm_up
    )
    if (entry.total is None) != is_empty:
        raise InvalidLedger(
            "no client contributed, so the total must be null"
            if entry.contributors == 0
            else f"{entry.contributors:,} clients contributed, fewer than least_reports ="
            f" {least_reports:,}, so the total must be null"
            if is_empty and is_averaged
            else f"the warm-up lasts until slot {run.campaign.warm_up}, so the total must be null"
            if is_empty
            else "the total is missing"
        )
    if entry.total is not None and len(entry.total) != 8 * run.dimension:
        raise InvalidLedger(
            f"the total has {len(entry.total) // 8:,} numbers, but the model has {run.dimension:,}"
        )
    if entry.dtype is NumberType.FLOAT64 and not run.simulated:
        raise InvalidLedger("dtype must be int64, because reports of a real campaign are integers")


def _check_closed(run: Run, entry: Closed) -> None:
    """Raise InvalidLedger if the reason or the certificate does not match the run.

    The reason is "completed" if every slot is closed, else "stopped".
    """
    slots = run.campaign.design.slots
    expected = Reason.COMPLETED if run.slots_closed == slots else Reason.STOPPED
    if entry.reason is not expected:
        raise InvalidLedger(
            f"the reason is {entry.reason}, but {run.slots_closed:,} of {slots:,} slots are over"
        )
    for name in ("delta", "adjacency"):
        if entry.certificate[name] != getattr(run.campaign.budget, name):
            raise InvalidLedger(
                f"the certificate is for {name} = {entry.certificate[name]},"
                f" but the budget has {getattr(run.campaign.budget, name)}"
            )
