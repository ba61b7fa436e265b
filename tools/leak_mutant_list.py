"""Planted leaks that the audit must find, and planted bugs that do not leak.

Each bug of mutant_list.py is either in ``FROM_MUTANTS``, because it is also a leak, or in
``NO_LEAK``, with the reason why there is no leak to measure.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.mutant_list import MUTANTS
from tools.mutants import Change, Mutant


@dataclass(frozen=True, slots=True)
class LeakMutant:
    """A planted leak, and the leak tests that must contradict its certificate."""

    name: str
    what: str
    changes: tuple[Change, ...]
    leak_tests: tuple[str, ...]

    @property
    def as_mutant(self) -> Mutant:
        return Mutant(self.name, self.what, self.changes, ())


FROM_MUTANTS: dict[str, tuple[str, ...]] = {
    "redraw-after-crash": ("coin",),
    "too-few-reports": ("least-reports",),
    "biased-choice": ("choice", "laplace-choice", "category-choice"),
    "dummy-left-out": ("dummies", "laplace-dummies", "categories"),
    "late-report-moves": ("late",),
    "noise-redrawn-on-retry": ("device", "response"),
    "count-leaked": ("dummies",),
    "coin-skipped": ("coin",),
    "fixed-window-off-by-one": ("slots",),
    "told-before-committed": ("choice", "category-choice"),
    "double-contribution": ("restored",),
    "shown-before-committed": ("restarts",),
    "closed-slot-remembers": ("links",),
    "budget-ignored": ("budget",),
    "device-remembers": ("remains",),
    "earlier-campaigns-forgotten": ("population",),
    "clip-after-noise": ("device",),
    "dummy-without-noise": ("dummies", "laplace-dummies"),
    "half-the-noise": ("sums", "device"),
    "float-noise": ("device",),
    "noise-reused": ("sums", "correlated"),
    "exact-sum-in-ledger": ("correlated",),
    "noise-on-the-grid-of-reports": ("correlated",),
    "sums-kept-after-the-end": ("correlated-remains",),
}

_NO_LEAK_BY_REASON: dict[str, tuple[str, ...]] = {
    "the leak is at most 2^-64 of delta, which no number of runs can measure": ("coin-rounded-up",),
    "the window has as many slots as before, and each is still drawn with the same probability": (
        "window-off-by-one",
    ),
    "leak tests attack the Python device; vectors and tests in chromium compare browsers with it": (
        "browser-modulo-bias",
        "browser-sign-of-noise",
        "browser-unclipped",
        "browser-unknown-keys",
        "browser-redraw-after-reload",
        "browser-noise-again",
        "browser-report-not-durable",
        "browser-clock-stands-still",
        "browser-two-tabs",
    ),
    "any computation on released sums is post-processing": (
        "accumulator-not-reset",
        "a-band-too-few",
        "reads-of-two-moments",
    ),
    "it changes which noise a plan proposes; the certificate of the plan is computed for it": (
        "bands-for-many-runs",
    ),
    "a simulation releases nothing about clients; the protocol that runs is the state machines'": (
        "simulated-noise-of-the-run-before",
        "average-of-the-warm-up",
    ),
    "a client that is answered too early may lose its one participation; it reveals nothing": (
        "acknowledged-before-durable",
    ),
    "whoever checks in gets the model a moment before its release, as every chosen client does": (
        "model-before-choice",
    ),
    "the certificate already counts slots of the warm-up as slots of the window": (
        "warm-up-too-short",
    ),
    "a sum contains one report of each client; an honest client sends the same report again": (
        "second-report-taken",
    ),
    "it makes a sum useless, but reveals nothing about an honest client's data": (
        "malformed-report-taken",
    ),
    "it removes the second of two guards; the server still stops at the end of the budget": (
        "ledger-overspends",
    ),
    "it removes the second of two guards; the server still skips slots with too few reports": (
        "ledger-of-too-few-reports",
    ),
    "updates exceed the clip by at most a millionth, and so does epsilon": ("clip-skipped",),
    "it affects availability only: releases are late or missing, and contain nothing more": (
        "full-disk-raises",
        "dead-task-forgotten",
        "late-slots-are-ready",
        "reader-holds-writers",
        "silent-store-holds-the-process",
        "start-ends-with-a-crash",
        "reports-read-at-once",
        "room-for-strangers",
        "answered-before-the-commit",
        "refused-after-the-token",
        "refused-retry",
        "no-time-for-reports",
        "no-time-for-devices",
        "refused-report-is-overload",
        "slow-clients-keep-out-others",
        "connections-unshared",
        "hostile-file-parsed",
        "honest-report-refused",
        "batch-skipped",
        "healthy-store-restored",
        "endless-answer",
        "compressed-answer",
    ),
    "it changes what remains on the disk, not the releases": ("log-never-emptied",),
    "it changes which packages a program needs, not the releases": (
        "device-needs-scipy",
        "missing-extra-unexplained",
    ),
    "slots are released early and contain only dummies, which look like reports": (
        "clock-believed",
        "hold-ignored",
        "restart-confirms-clock",
    ),
    "reports of honest clients are within the limit; other reports only make a sum useless": (
        "long-report-taken",
        "clip-not-enforced",
    ),
    "without earlier sums, an update is in fewer totals, and each total has noise of its own": (
        "sums-forgotten",
        "sums-not-stored",
        "lost-sums-tolerated",
        "bands-off-by-one",
    ),
    "it leaks only to someone who has the backup, the log or the disk of a run that was stopped": (
        "sums-in-the-backup",
        "sums-in-the-log",
        "stopped-run-keeps-sums",
        "secrets-beside-the-backup",
    ),
    "an audit never has more clients than the campaign declares": (
        "population-ignored",
        "allow-list-too-long",
    ),
    "it makes a certificate wrong, not a release; the theorem has its own tests": (
        "kinds-unmixed",
        "curious-for-free",
        "lower-end-of-everything",
        "filter-never-used",
        "unused-repeats-free",
        "resumed-repeats-free",
        "lower-end-of-unreleased",
        "filter-chosen-late",
        "filter-charges-too-little",
        "slack-for-every-block",
        "named-without-displacing",
        "named-without-capacity",
        "copies-grouped-down",
        "lattice-capped-mean-lost",
        "lattice-low-mass-lowered",
        "local-delta-free",
        "full-slots-for-free",
        "one-window-for-two-wake-times",
        "kept-step-for-one-epoch",
        "parts-rounded-up",
        "lower-end-of-any-steps",
        "convolution-noise-magnified",
        "optimistic-estimate-read",
        "capped-mean-dropped",
        "atoms-rounded-down",
        "rounding-of-a-test-ignored",
        "wrapped-mass-counted",
        "acceptance-without-the-client",
        "surely-chosen",
        "adaptive-updates-without-participation",
        "steep-tangents",
        "clients-of-one-window",
        "more-full-slots-not-charged",
        "last-coefficient-left-out",
        "window-cuts-updates-off",
        "distance-of-blocks-off-by-one",
        "independent-blocks-that-overlap",
        "column-norm-above-one",
        "increasing-coefficients",
        "blocks-with-a-capacity",
        "correlated-noise-priced-as-independent",
        "small-population-fills-slots",
        "unchecked-dimension",
        "name-without-dimension",
        "curious-clients-count-as-dummies",
    ),
    "an audit has one population and one ledger, so no odometer of a device refuses anything": (
        "uncharged-draw",
        "free-second-ledger",
    ),
    "it weakens the proof that a ledger or a log is the original; it changes no release": (
        "forged-head",
        "any-key-signs",
        "forged-rotation",
        "unsigned-ledger",
        "unchecked-checkpoint",
        "rewritten-log",
        "hash-unread",
        "seal-unread",
    ),
    "the training of a device in an audit never fails": ("failed-training-shows", "silent-nan"),
    "an audit trains no Flower app; each update is clipped, whatever the app returns": (
        "weighted-by-examples",
        "flower-app-called-twice",
        "context-after-crash",
        "trained-counter",
    ),
    "an audit runs no SuperLink, and only its nodes have gates, keys and mods": (
        "flower-key-used-late",
        "flower-keys-lost",
        "flower-node-follows-the-clock",
        "flower-online-before",
        "flower-gate-draws-again",
        "flower-gate-after-choice",
        "flower-metrics-in-report",
    ),
    "it needs a client that enrols against the rules, and an audit has only honest clients": (
        "revoked-key-enrols",
        "revocation-unspends",
        "keys-beyond-population",
    ),
    "it needs a dishonest holder of an operator's token, which no audit has": (
        "revoked-token-works",
        "metrics-token-operates",
    ),
    "it changes an attack of the compiled engine, not a release": ("attack-beyond-population",),
    "it leaks only if an old copy of the store is restored, which no audit does": (
        "progress-file-near-store",
        "another-ledger-accepted",
        "report-to-another-ledger",
        "lost-sums-unnoticed",
    ),
    "it leaks only if the coordinator is malicious; an audit runs its own coordinator": (
        "code-of-the-service",
    ),
}

NO_LEAK: dict[str, str] = {
    name: reason for reason, names in _NO_LEAK_BY_REASON.items() for name in names
}
"""The reason why a planted bug does not leak measurably, by the name of the bug."""

_MORE_LEAKS = (
    LeakMutant(
        "leaked-slot",
        "every client takes the first slot of its window, so its slot is predictable",
        (
            Change(
                "protocol/participant.py",
                "participant.window.slot(event.pick, first_open_slot=event.first_open_slot)",
                "participant.window.slot(0, first_open_slot=event.first_open_slot)",
            ),
        ),
        ("sums", "sliding"),
    ),
    LeakMutant(
        "replayed-slots",
        "the reports of a slot are counted again in every slot after it, with fresh noise",
        (
            Change(
                "protocol/slot.py",
                "        Phase.CLOSED,\n        total",
                "        Phase.CLOSED,\n        reports=slot.reports,\n        total",
            ),
            Change(
                "protocol/slot.py",
                "    client_reports = [\n        slot.reports[receipt] for receipt in"
                " slot.chosen_receipts if receipt in slot.reports\n    ]\n",
                "    client_reports = list(slot.reports.values())\n",
            ),
            Change(
                "protocol/server.py",
                "after = replace(server, phase=phase, closed=closed, slot=None)",
                "after = replace(server, phase=phase, closed=closed)",
            ),
            Change(
                "protocol/server.py",
                "slot=Slot(event.slot, server.rules))",
                "slot=Slot(event.slot, server.rules,"
                " reports=server.slot.reports if server.slot else {}))",
            ),
        ),
        ("sums",),
    ),
    LeakMutant(
        "clip-left-out",
        "a device does not clip its update, and the server does not check the norm of reports",
        (
            Change(
                "protocol/report.py",
                "if self.norm is not None and not self.norm.holds(report.values):",
                "if False:",
            ),
            Change(
                "randomizers/device.py",
                "return self.grid.clip(self._vector(update), clip, order=order)",
                "return np.trunc(self._vector(update) / self.grid.step).astype(np.int32)",
            ),
        ),
        ("sums", "averaged"),
    ),
    LeakMutant(
        "half-the-laplace-noise",
        "a device draws Laplace noise of half the certified scale",
        (
            Change(
                "randomizers/grid.py",
                "        return rounded_laplace(scale)",
                "        return rounded_laplace(scale / 2)",
            ),
        ),
        ("laplace",),
    ),
    LeakMutant(
        "true-category-kept",
        "a device keeps its true category as often as with twice the certified local epsilon",
        (
            Change(
                "randomizers/integer_noise.py",
                "exp_minus_rounded_up(Fraction(local_epsilon))",
                "exp_minus_rounded_up(2 * Fraction(local_epsilon))",
            ),
        ),
        ("response",),
    ),
    LeakMutant(
        "dummies-of-one-category",
        "every dummy of randomized response is the first category, not a uniform one",
        (
            Change(
                "randomizers/device.py",
                "self._one_hot(uniform_below(self._noise.categories, _RANDOMNESS))",
                "self._one_hot(0)",
            ),
        ),
        ("categories",),
    ),
    LeakMutant(
        "capacity-ignored",
        "a slot uses all of its check-ins, even if they exceed its capacity",
        (
            Change(
                "protocol/slot.py",
                "check_ins if self.rules.capacity is None else min(check_ins, self.rules.capacity)",
                "check_ins",
            ),
            Change(
                "protocol/slot.py",
                "(self.rules.capacity or 0) - self.report_count - self.partial_sum.dummy_count",
                "max((self.rules.capacity or 0) - self.report_count"
                " - self.partial_sum.dummy_count, 0)",
            ),
        ),
        ("category-choice",),
    ),
    LeakMutant(
        "float32-noise",
        "a device draws 32-bit floating-point noise and rounds it to the grid",
        (
            Change(
                "randomizers/device.py",
                "        self._noise.add_to(units, _RANDOMNESS)",
                "        spread = self.randomizer.std / self.grid.step\n"
                "        normal = np.random.default_rng().standard_normal("
                "units.size, dtype=np.float32)\n"
                "        units += (normal * np.float32(spread)).astype(np.int32)",
            ),
        ),
        ("grid",),
    ),
)

_BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

LEAKS: tuple[LeakMutant, ...] = (
    *(
        LeakMutant(name, _BY_NAME[name].what, _BY_NAME[name].changes, leak_tests)
        for name, leak_tests in FROM_MUTANTS.items()
    ),
    *_MORE_LEAKS,
)

LIVE: tuple[LeakMutant, ...] = (
    LeakMutant(
        "coordinator-without-noise",
        "a coordinator adds no noise to its sums; audited over HTTP",
        (
            Change(
                "service/runs/slot_transitions.py",
                "Report.from_noise(sampler.noise()) if",
                "Report.from_noise(0 * sampler.noise()) if",
            ),
        ),
        ("live",),
    ),
)
"""Leaks in a running coordinator, which ``checkins.audit.live`` audits over HTTP."""
