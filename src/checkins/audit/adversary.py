"""The scenario of an audit of the state machines, and the scores that an adversary computes.

The audit runs a campaign many times with one client, the canary, and many times without it. Each
score is computed from one run, and a larger score is evidence that the canary took part. The first
score is the likelihood ratio of all releases, which is the best score if the implementation is
correct. The other scores detect implementation errors: missing noise, a predictable slot, or
information that must not be released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from checkins.accounting import Adjacency, Protocol
from checkins.audit.machine_run import CANARY, Observations
from checkins.audit.releases import GaussianSum, LaplaceSum, Noise, coefficients_of
from checkins.campaign import Campaign
from checkins.protocol.model_update import ModelUpdate
from checkins.protocol.participant import Participant
from checkins.protocol.rules import FixedWindow, SlidingWindow
from checkins.randomizers import DeviceSampler, Gaussian, RandomizedResponse, Randomizer

Update = NDArray[np.float64]

UNCLIPPED_NORM = 3.0
"""Norm of the canary's update, in units of the clip norm. A correct device clips it to 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """The canary's two updates, and the other devices.

    Updates are along the last coordinate, in units of the clip norm. The canary has the update
    ``update_with`` in half of the runs. In the other half it has ``update_without`` (replace-one),
    or is missing if ``update_without`` is None (add/remove). ``others_per_slot`` other devices with
    the clipped update −1 check in to every slot, and the adversary knows their slots.
    ``random_others`` more devices with the update 0 draw their slots at random.
    """

    name: str
    update_with: float = UNCLIPPED_NORM
    update_without: float | None = None
    others_per_slot: int = 0
    random_others: int = 0


def scenarios_for(campaign: Campaign) -> tuple[Scenario, ...]:
    """Return the scenarios in which a campaign leaks most.

    If the campaign declares a population, there is one scenario, with the smallest declared number
    of clients. Otherwise the canary is the only client. If slots have a capacity, there is a second
    scenario, in which other clients fill every slot.
    """
    design = campaign.design
    is_replace_one = campaign.budget.adjacency is Adjacency.REPLACE_ONE
    update_without = -UNCLIPPED_NORM if is_replace_one else None
    if design.population is not None:
        others = design.population.fewest - 1
        return (Scenario("among others", UNCLIPPED_NORM, update_without, random_others=others),)
    scenarios = [Scenario("alone among dummies", UNCLIPPED_NORM, update_without)]
    if design.capacity is not None:
        full = design.capacity
        scenarios.append(
            Scenario("in full slots", UNCLIPPED_NORM, update_without, others_per_slot=full)
        )
    return tuple(scenarios)


def last_axis_update(length: float, sampler: DeviceSampler) -> Update:
    """Return an update of ``length`` times the clip norm along the last coordinate.

    With randomized response, it is the last category if ``length`` is positive, else the first.
    """
    update = np.zeros(sampler.dimension)
    randomizer = sampler.randomizer
    update[-1] = length if isinstance(randomizer, RandomizedResponse) else length * randomizer.clip
    return update


def model_update_of(campaign: Campaign) -> ModelUpdate:
    """Return the update that a campaign declares, or the plain sum for randomized response.

    A campaign with randomized response has no model. In an audit, its server releases the number of
    reports of each category instead, as the sum of all slots so far.
    """
    has_categories = campaign.randomizer.categories is not None
    return ModelUpdate(rate=1.0) if has_categories else ModelUpdate.of(campaign)


def wake_slot_of(campaign: Campaign) -> int:
    """Return the slot at which all devices wake and draw.

    With sliding windows, the server releases nothing in the first window − 1 slots, so devices wake
    after these slots.
    """
    return campaign.design.window or 1


def other_devices(scenario: Scenario, campaign: Campaign) -> dict[str, tuple[Participant, float]]:
    """Return all devices but the canary by token, with updates in units of the clip norm."""
    design = campaign.design
    in_every_slot = {
        f"other-{slot}-{index}": (Participant(1.0, FixedWindow((slot,))), -UNCLIPPED_NORM)
        for slot in range(1, design.slots + 1)
        for index in range(scenario.others_per_slot)
    }
    window = SlidingWindow(design.window) if design.window else FixedWindow.whole(design.slots)
    in_random_slots = {
        f"random-other-{index}": (Participant(design.participation, window), 0.0)
        for index in range(scenario.random_others)
    }
    return in_every_slot | in_random_slots


AttackScores = dict[str, float]
"""The scores of one run, by the name of the attack."""
LastEntriesBySlot = dict[int, list[float]]
"""For each slot, the last entries of its sums, in units of the clip norm."""

LIKELIHOOD_RATIO = "likelihood ratio"
"""Name of the attack that scores a run by the likelihood ratio of its releases."""


def log_likelihood_ratio(
    randomizer: Randomizer, reports: int, sums: Sequence[float], shift: float
) -> float:
    """Return log(p/q) of ``sums``, where p is their density with mean ``shift``, and q with mean 0.

    Every sum has the noise of ``reports`` reports. Sums and shift are in units of the clip norm.
    """
    noise: Noise
    if isinstance(randomizer, Gaussian):
        noise = GaussianSum(randomizer.noise_multiplier * math.sqrt(reports))
    else:
        noise = LaplaceSum(2.0 / randomizer.privacy_spec.local_epsilon, reports)
    return math.fsum(noise.log_ratio(np.asarray(sums, np.float64), np.full(1, shift)))


@dataclass(frozen=True)
class Adversary:
    """An adversary who knows a small campaign and its scenario, and scores one run at a time."""

    campaign: Campaign
    scenario: Scenario
    slots: Sequence[int]
    """The slots that the canary draws from."""
    randomizer: Randomizer
    reports: int
    """The number of reports with noise in the sum of a slot."""

    @cached_property
    def _model_update(self) -> ModelUpdate:
        return model_update_of(self.campaign)

    @cached_property
    def _coefficients(self) -> tuple[float, ...]:
        return coefficients_of(self.campaign.design)

    def release_scores(self, observed: Observations) -> AttackScores:
        """Return scores computed from all released models."""
        sums = self._sums(observed)
        last_entries = self._with_independent_noise(
            {  # the known updates of the other devices, −1 each, are subtracted
                slot: [float(vector[-1]) + self.scenario.others_per_slot for vector in vectors]
                for slot, vectors in sums.items()
            }
        )
        all_entries = [entry for entries in last_entries.values() for entry in entries] or [0.0]
        first, last = (min(last_entries), max(last_entries)) if last_entries else (0, 0)
        zero_sums = sum(not np.any(vector) for vectors in sums.values() for vector in vectors)
        scores = {
            LIKELIHOOD_RATIO: self._canary_log_ratio(last_entries, observed),
            "largest sum": max(all_entries),
            "smallest sum": min(all_entries),
            "all sums together": math.fsum(all_entries),
            "sum of squares": math.fsum(entry * entry for entry in all_entries),
            "first slot": math.fsum(last_entries.get(first, [])),
            "last slot": math.fsum(last_entries.get(last, [])),
            "sums that are not zero": float(len(all_entries) - zero_sums),
        }
        if isinstance(self.randomizer, RandomizedResponse):  # each report adds 1 to a sum
            scores["number of reports"] = math.fsum(
                vector.sum() for vectors in sums.values() for vector in vectors
            )
        return scores

    def ledger_scores(self, observed: Observations) -> AttackScores:
        """Return scores computed from the ledger: its report counts, and its totals.

        The score of the counts is −1 if the ledger has no counts.
        """
        counts = [count for count in observed.contributors.values() if count is not None]
        totals = [closing.total for closing in observed.closings if closing.total is not None]
        return {
            "counts in the ledger": float(sum(counts)) if counts else -1.0,
            "largest total in the ledger": max((float(total[-1]) for total in totals), default=0.0),
            "totals in the ledger that are not zero": float(sum(total.any() for total in totals)),
        }

    def disk_scores(self, observed: Observations) -> AttackScores:
        """Return scores of the data that remain on the disks of server and device after the end."""
        slot, device = observed.server_disk.slot, observed.device_disk
        report = None if device is None else device.report
        value = 0.0 if report is None else float(report.values[-1]) * self._grid_step
        sums = observed.server_disk.exact_sums
        return {
            "server's disk": float(slot is not None and CANARY in slot.receipts_by_token),
            "sums on the server's disk": float(sum(exact_sum[-1] for exact_sum in sums)),
            "device's disk": value,
        }

    @property
    def _grid_step(self) -> float:
        """The grid step of reports, in units of the clip norm."""
        grid, clip = self.campaign.randomizer.grid, self.campaign.randomizer.clip
        return (grid or 1.0) / (clip or 1.0)

    def _sums(self, observed: Observations) -> dict[int, list[NDArray[np.float64]]]:
        """Return the sums of each slot in units of the clip norm, from the released models.

        A slot has one sum for each distinct model that was released for it. A correct server
        releases one model per slot.
        """
        counts = observed.contributors
        latest_model, sums = observed.start_model, dict[int, list[NDArray[np.float64]]]()
        model_before = latest_model
        step = self._model_update.rate * self._model_update.unit / self._grid_step
        released: dict[int, set[bytes]] = {}
        for slot, model in observed.releases:
            if slot not in sums:
                model_before, sums[slot], released[slot] = latest_model, [], set()
            latest_model = model
            if model.tobytes() not in released[slot]:
                released[slot].add(model.tobytes())
                sums[slot].append((model_before - model) * ((counts.get(slot) or 1) / step))
        return sums

    def _with_independent_noise(self, noisy: LastEntriesBySlot) -> LastEntriesBySlot:
        """Return the entries of the totals, from those of the noisy sums.

        They are the same unless noise is correlated across slots. Then the noise of different
        totals is independent. If several models were released for a slot, the last one counts for
        the totals of later slots.
        """
        c, totals = self._coefficients, LastEntriesBySlot()
        for slot, entries in noisy.items():
            earlier = [
                coefficient * noisy[slot - age][-1]
                for age, coefficient in enumerate(c)
                if age and slot - age in noisy
            ]
            totals[slot] = [c[0] * entry + math.fsum(earlier) for entry in entries]
        return totals

    def _canary_log_ratio(self, last_entries: LastEntriesBySlot, observed: Observations) -> float:
        """Return the log-likelihood ratio of the runs with the canary and without it."""
        scenario = self.scenario
        ratio = self._log_ratio_to_missing(last_entries, _clipped(scenario.update_with), observed)
        if scenario.update_without is None:
            return ratio
        other = _clipped(scenario.update_without)
        return ratio - self._log_ratio_to_missing(last_entries, other, observed)

    def _log_ratio_to_missing(
        self, last_entries: LastEntriesBySlot, update: float, observed: Observations
    ) -> float:
        """Return the log-likelihood ratio of runs with and without a canary that has this update.

        Theorem:     docs/theory/one-likelihood-ratio.md.
        """
        scenario, participation = self.scenario, self.campaign.design.participation
        if isinstance(self.randomizer, RandomizedResponse):
            return self._log_ratio_of_categories(self.randomizer, update, self._sums(observed))
        if self.campaign.design.protocol is Protocol.AVERAGED:
            return self._log_ratio_of_averages(last_entries, update, observed.contributors)
        others = scenario.others_per_slot
        shift = update + (1.0 if others else 0.0)  # the canary displaces an update of −1
        choice_probability = others / (others + 1.0) if others else 1.0
        terms = [math.log1p(-participation)] if participation < 1.0 else []
        slot_probability = participation / len(self.slots)
        for slot in self.slots:
            ratio = math.fsum(
                log_likelihood_ratio(
                    self.randomizer,
                    self.reports,
                    last_entries.get(slot + age, ()),
                    coefficient * shift,
                )
                for age, coefficient in enumerate(self._coefficients)
            )
            terms.append(math.log(slot_probability * choice_probability) + ratio)
            if choice_probability < 1.0:
                terms.append(math.log(slot_probability * (1.0 - choice_probability)))
        return float(np.logaddexp.reduce(terms))

    def _log_ratio_of_categories(
        self,
        randomizer: RandomizedResponse,
        update: float,
        sums: dict[int, list[NDArray[np.float64]]],
    ) -> float:
        """Return the result of ``_log_ratio_to_missing`` for randomized response.

        The canary's report may be any report of its slot, so the ratio of a slot is the average,
        over its reports, of the ratio of one report. All other reports of the slot are dummies, or
        those of clients in the first category. Each slot has ``reports`` reports.
        """
        participation, others = self.campaign.design.participation, self.scenario.others_per_slot
        dummy = np.full(randomizer.categories, 1.0 / randomizer.categories)
        other_report = _category_probabilities(randomizer, -1.0) if others else dummy
        ratios = _category_probabilities(randomizer, update) / other_report
        choice_probability = self.reports / (others + 1.0) if others else 1.0
        total = 1.0 - participation
        for slot in self.slots:
            ratio = math.fsum(vector @ ratios for vector in sums.get(slot, ())) / self.reports
            slot_ratio = 1.0 - choice_probability + choice_probability * ratio
            total += participation / len(self.slots) * slot_ratio
        return math.log(max(total, 1e-300))  # leaky code may release slots without any report

    def _log_ratio_of_averages(
        self, last_entries: LastEntriesBySlot, update: float, counts: dict[int, int | None]
    ) -> float:
        """Return the result of ``_log_ratio_to_missing`` for averaged updates.

        Each slot is weighted by its number of reports. A skipped slot releases nothing, so its sum
        is zero. A leaky server may release such a slot, and then its sum is used.
        """
        terms = [
            math.log(count)
            + (log_likelihood_ratio(self.randomizer, count, sums, update) if any(sums) else 0.0)
            for slot, sums in last_entries.items()
            if (count := counts.get(slot) or 0) > 0
        ]
        return float(np.logaddexp.reduce(terms)) if terms else 0.0


def _category_probabilities(randomizer: RandomizedResponse, length: float) -> NDArray[np.float64]:
    """Return the probability of each category in a report of this ``last_axis_update``."""
    lie = randomizer.lie_probability / (randomizer.categories - 1)
    probabilities = np.full(randomizer.categories, lie)
    probabilities[-1 if length > 0.0 else 0] = randomizer.truth_probability
    return probabilities


def _clipped(length: float) -> float:
    """Return a signed length after clipping. Lengths are in units of the clip norm."""
    return math.copysign(min(abs(length), 1.0), length)
