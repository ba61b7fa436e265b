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
    "biased-choice": ("choice",),
    "dummy-left-out": ("dummies",),
    "late-report-moves": ("late",),
    "noise-redrawn-on-retry": ("device",),
    "count-leaked": ("dummies",),
    "coin-skipped": ("coin",),
    "fixed-window-off-by-one": ("slots",),
    "told-before-committed": ("choice",),
    "double-contribution": ("restored",),
    "shown-before-committed": ("restarts",),
    "closed-slot-remembers": ("links",),
    "budget-ignored": ("budget",),
    "device-remembers": ("remains",),
    "earlier-campaigns-forgotten": ("population",),
    "clip-after-noise": ("device",),
    "dummy-without-noise": ("dummies",),
    "half-the-noise": ("sums", "device"),
    "float-noise": ("device",),
}

NO_LEAK: dict[str, str] = {
    "coin-rounded-up": "a leak of at most 2^-64 of delta: no number of runs can measure it",
    "window-off-by-one": "the window has as many slots as before, drawn as evenly",
    "accumulator-not-reset": "what is done with sums that were released is post-processing",
    "acknowledged-before-durable": "a client that is told too early loses its one participation;"
    " nobody sees more of it",
    "warm-up-too-short": "a slot of the warm-up was priced as a slot of the window all along",
    "second-report-taken": "one report of a client is in the sum, whichever; an honest client sends"
    " the same one",
    "malformed-report-taken": "it spoils a sum, and tells nothing of an honest client's data",
    "ledger-overspends": "the second of two guards: the server stops where the budget ends without"
    " it",
    "clip-skipped": "it lets updates pass that are a millionth longer than the clip: a millionth of"
    " epsilon",
    **dict.fromkeys(
        (
            "full-disk-raises",
            "dead-task-forgotten",
            "late-slots-are-ready",
            "reader-holds-writers",
            "silent-store-holds-the-process",
            "start-ends-with-a-crash",
            "reports-read-at-once",
            "room-for-strangers",
            "connections-unshared",
            "hostile-file-parsed",
            "honest-report-refused",
            "batch-skipped",
            "healthy-store-restored",
            "endless-answer",
            "compressed-answer",
        ),
        "a promise of availability: releases come late or not at all, and say nothing more",
    ),
    **dict.fromkeys(
        ("log-never-emptied",),
        "it is about what the disk keeps; the releases are the same",
    ),
    **dict.fromkeys(
        (
            "clock-believed",
            "hold-ignored",
            "restart-confirms-clock",
        ),
        "slots are released early and empty: their dummies look like reports",
    ),
    **dict.fromkeys(
        (
            "long-report-taken",
            "clip-not-enforced",
        ),
        "an honest client's report is no longer than that; whoever lies spoils a sum",
    ),
    **dict.fromkeys(
        (
            "population-ignored",
            "allow-list-too-long",
        ),
        "an audit takes part with as many clients as were declared",
    ),
    **dict.fromkeys(
        (
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
        ),
        "a number is wrong, and the releases are the same: its theorem has tests of its own",
    ),
    **dict.fromkeys(
        (
            "witness-beside-store",
            "another-ledger-accepted",
            "report-to-another-ledger",
        ),
        "it takes a store that was put back; an audit puts none back",
    ),
    **dict.fromkeys(
        ("code-of-the-service",),
        "it takes a service that lies; an audit runs its own",
    ),
}

_OURS = (
    LeakMutant(
        "leaked-slot",
        "every client takes the first slot of its window: anyone knows when it comes",
        (
            Change(
                "protocol/participant.py",
                "participant.window.slot(event.pick, now=event.now)",
                "participant.window.slot(0, now=event.now)",
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
                "    real = [slot.reports[receipt] for receipt in slot.chosen"
                " if receipt in slot.reports]\n",
                "    real = list(slot.reports.values())\n",
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
        "a device rounds its update and does not shorten it, and nobody measures its report",
        (
            Change(
                "protocol/report.py",
                "if self.norm is not None and not self.norm.holds(report.values):",
                "if False:",
            ),
            Change(
                "randomizers/device.py",
                "return self.grid.clip_l2(self._vector(update), clip)",
                "return np.trunc(self._vector(update) / self.grid.step).astype(np.int32)",
            ),
            Change(
                "randomizers/device.py",
                "return self.grid.clip_l1(self._vector(update), clip)",
                "return np.trunc(self._vector(update) / self.grid.step).astype(np.int32)",
            ),
        ),
        ("sums", "averaged"),
    ),
    LeakMutant(
        "half-the-laplace-noise",
        "a device draws Laplace noise of half the scale that is priced",
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
        "float32-noise",
        "a device draws its noise in 32-bit floating point, well seeded, and rounds it to the grid",
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
    LeakMutant(
        "server-noise-once",
        "the server draws its noise once and adds the same to every slot",
        (
            Change(
                "randomizers/device.py",
                "        return self._noise.draw(self.dimension, _RANDOMNESS).astype(np.int64)",
                "        global _KEPT\n"
                '        if "_KEPT" not in globals():\n'
                "            noise = self._noise.draw(self.dimension, _RANDOMNESS)\n"
                "            _KEPT = noise.astype(np.int64)\n"
                "        return _KEPT",
            ),
        ),
        ("sums",),
    ),
)

_BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

LEAKS: tuple[LeakMutant, ...] = (
    *(
        LeakMutant(name, _BY_NAME[name].what, _BY_NAME[name].changes, leak_tests)
        for name, leak_tests in FROM_MUTANTS.items()
    ),
    *_OURS,
)

LIVE: tuple[LeakMutant, ...] = (
    LeakMutant(
        "coordinator-without-noise",
        "a coordinator forgets the noise of its sums; seen over HTTP alone",
        (
            Change(
                "service/runs/randomness.py",
                "Report.from_noise(sampler.noise()) if",
                "Report.from_noise(0 * sampler.noise()) if",
            ),
        ),
        ("live",),
    ),
)
"""Leaks in a running coordinator, which ``checkins.audit.live`` audits over HTTP."""
