"""Sentences of a report: what a campaign learned, what its certificate states, and what not.

Plain text; the functions that put it on a page escape it.
"""

from __future__ import annotations

import math

from checkins.accounting import Adjacency, Certificate
from checkins.accounting.certificate import UNIT
from checkins.simulation.baselines import Baseline
from checkins.simulation.report import numbers
from checkins.simulation.result import BaselineResult, SimulationResult

THIS = "random check-ins"
"""Name of the simulated campaign among the methods it is compared with."""
METHOD_NAMES = {
    Baseline.NON_PRIVATE: "non-private",
    Baseline.POISSON: "Poisson DP-SGD",
    Baseline.SHUFFLING: "shuffling",
    Baseline.NO_AMPLIFICATION: "no amplification",
}
CHANGE = {
    Adjacency.ADD_REMOVE: "Adding any one client, or taking one away,",
    Adjacency.REPLACE_ONE: "Changing all of any one client's data",
}
CERTIFICATE_METHODS = {
    "exact": "computed exactly from the releases' distributions, whoever else takes part",
    "exact-population": "computed exactly, with the number of clients as an assumption",
    "paper": "by the paper's theorem",
    "no-amplification": "the epsilon of one report, without amplification by random slots",
}
SPACE = "\N{NO-BREAK SPACE}"


def measured_on(result: SimulationResult) -> str:
    """The rows that the metrics are measured on."""
    return "the public holdout" if result.on_holdout else "the clients' own rows"


def spread(one: SimulationResult | BaselineResult, metric: str) -> str:
    """The standard deviation of a metric over seeds; empty with one seed."""
    return numbers.spread(metric, (one.spread or {}).get(metric))


def measured(one: SimulationResult | BaselineResult, metric: str) -> str:
    """The mean of a metric over seeds, and its standard deviation if there are several."""
    return f"{numbers.metric(metric, one.metrics.get(metric))} {spread(one, metric)}".strip()


def same_epsilon(result: SimulationResult, one: BaselineResult) -> bool:
    """Whether a baseline has this campaign's epsilon, to within a hundredth of it."""
    own, other = numbers.finite(result.certificate.epsilon), numbers.finite(one.baseline.epsilon)
    return own is not None and other is not None and abs(own - other) <= 0.01 * own


def subtitle(result: SimulationResult) -> str:
    """One line under the title: how many clients, which data, model and protocol."""
    return (
        "Simulated on a computer: no device took part."
        f" {numbers.count(result.scenario.clients)} clients on {result.data.name},"
        f" {result.model} model, {result.campaign.design.protocol} protocol,"
        f" {numbers.count(result.slots)} slots."
    )


def scenario(result: SimulationResult) -> str:
    """The assumptions about clients; empty if each of the data takes part and is always online."""
    found, lines = result.scenario, []
    if result.reused:
        lines.append("clients of the data stand for several each, to reach the population")
    if str(found.availability) != "always":
        lines.append(f"availability is {found.availability}")
    if found.dropout:
        lines.append(f"{numbers.nearest(100 * found.dropout)} % drop out after being chosen")
    return f"In this run, {'; '.join(lines)}." if lines else ""


def partial(result: SimulationResult) -> str:
    """How far a simulation came that was stopped; empty for a complete one."""
    if result.complete:
        return ""
    ended = sum(seed.complete for seed in result.seeds)
    stopped_at = [seed.slots for seed in result.seeds if not seed.complete]
    reached = ""
    if stopped_at:
        planned = result.campaign.design.slots * result.campaign.repeats
        reached = f"; another reached slot {max(stopped_at):,} of {planned:,}"
    return (
        f"Partial result: the simulation was stopped. {ended} of {len(result.seeds)} seeds came to"
        f" their end{reached}. The certificate covers the slots of the longest seed."
    )


def over_budget(result: SimulationResult) -> str:
    """A warning that epsilon exceeds the budget; empty if it does not."""
    if result.within_budget:
        return ""
    epsilon = numbers.finite(result.certificate.epsilon)
    bound = "no ε could be bounded" if epsilon is None else f"it spends {_epsilon(epsilon)}"
    return (
        f"Over its budget: {bound}, its budget is {numbers.down(result.campaign.budget.epsilon)};"
        " a real campaign would stop before its end."
    )


def summary(result: SimulationResult) -> list[str]:
    """Three sentences: what was learned, the guarantee, the comparison."""
    return [_learned(result), guarantee(result.certificate), _compared(result)]


def _learned(result: SimulationResult) -> str:
    metric, who = result.headline, numbers.count(result.scenario.clients)
    if metric is None:
        return (
            f"{who} simulated clients each chose their own moment, but the model they trained"
            " diverged: its rate is too large for this noise."
        )
    rows = f"{numbers.count(result.data.holdout_rows)} public rows it never saw"
    if not result.on_holdout:
        rows = "the clients' own rows, which it was trained on"
    sentence = (
        f"{who} simulated clients each chose their own moment, and the model they trained reaches"
        f" {_article(metric)} {numbers.metric(metric, result.metrics[metric])} on {rows}"
    )
    non_private = result.baseline(Baseline.NON_PRIVATE)
    if non_private is None:
        return f"{sentence}."
    best = numbers.metric(metric, non_private.metrics.get(metric))
    return f"{sentence}; the same model reaches {best} without any privacy."


def guarantee(certificate: Certificate) -> str:
    """The guarantee of a certificate in one sentence, with e^epsilon rounded up."""
    epsilon = numbers.finite(certificate.epsilon)
    if epsilon is None:
        return "No ε could be bounded for this campaign, so nothing is guaranteed to its clients."
    factor = numbers.up(math.exp(epsilon)) if epsilon < 700.0 else "any number of"
    delta = numbers.nearest(certificate.delta)
    return (
        f"{CHANGE[certificate.adjacency]} makes nothing that someone could conclude from all the"
        f" released models more than {factor} times as likely, apart from a probability of {delta}"
        f" ({_epsilon(epsilon)}, {_delta(certificate)})."
    )


def _compared(result: SimulationResult) -> str:
    metric, poisson = result.headline, result.baseline(Baseline.POISSON)
    if metric is None or poisson is None:
        return dummies(result)
    value = numbers.metric(metric, poisson.metrics.get(metric))
    start = f"For an ε of {numbers.up(poisson.baseline.epsilon)}"
    if same_epsilon(result, poisson):
        start = "At the same ε"
    return (
        f"{start}, DP-SGD with Poisson sampling reaches {value}, but needs a server"
        " that can call any client at any time; here no client is ever called."
    )


def dummies(result: SimulationResult) -> str:
    """How many dummy reports were needed, compared with their expected number."""
    came = f"{numbers.count(result.check_ins)} clients checked in"
    if result.dummies_expected is None:
        return (
            f"{came}, in {numbers.count(result.slots)} slots; theory has no number of dummies for"
            " this protocol."
        )
    return (
        f"{came}, and {numbers.count(result.dummies)} dummies filled the slots that had too few"
        f" (theory expects {numbers.count(result.dummies_expected)}), so that no outsider can tell"
        " how many came."
    )


def comparison(result: SimulationResult) -> str:
    """What the compared methods have in common."""
    private = [one for one in result.available_baselines if one.kind is not Baseline.NON_PRIVATE]
    budget = "each private method at the ε of the table"
    if all(same_epsilon(result, one) for one in private):
        budget = "every private method has the same ε and δ to spend, so the noise differs"
    return f"The same model and data; {budget}."


def spent(result: SimulationResult) -> str:
    """The epsilon of the certificate compared with the budget."""
    epsilon, budget = numbers.finite(result.certificate.epsilon), result.campaign.budget.epsilon
    start = "Each release adds to ε; a campaign that stops early has spent this much."
    if epsilon is None:
        return start
    if not epsilon <= budget:
        return f"{start} The whole exceeds its budget of {numbers.nearest(budget)}."
    share = numbers.up(100.0 * epsilon / budget, 2)
    return f"{start} The whole takes {share} % of the budget of {numbers.nearest(budget)}."


def certificate_lines(certificate: Certificate) -> list[str]:
    """The statements of a certificate, line by line."""
    name = certificate.method
    described = f"{name}: {CERTIFICATE_METHODS[name]}" if name in CERTIFICATE_METHODS else name
    lines = [
        _interval(certificate),
        f"{_delta(certificate)}, neighbours: {certificate.adjacency}.",
        f"Protected: {UNIT}, in all releases together.",
        f"Method: {described}.",
        _against_server(certificate),
    ]
    if certificate.campaigns > 1:
        lines.append(f"Composed over {certificate.campaigns:,} runs with independent randomness.")
    return lines


def _interval(certificate: Certificate) -> str:
    """Which epsilon is proven and which is disproven, each with its rounding."""
    upper = f"{_epsilon(certificate.epsilon)} is proven (rounded up)"
    lower = numbers.finite(certificate.epsilon_lower)
    if lower is None or lower == 0.0:
        return f"{upper}."
    of = certificate.epsilon_lower_of
    return f"{upper}; for {of}, no ε below {numbers.down(lower)} is true (rounded down)."


def _against_server(certificate: Certificate) -> str:
    """The guarantee if the server itself is the adversary."""
    local = certificate.against_server
    if local is None:
        return "Against the server itself: not stated."
    if not math.isfinite(local.epsilon):
        return f"Against the server itself: {local.note}."
    return (
        f"Against the server itself: {_epsilon(local.epsilon)} ({Adjacency.REPLACE_ONE}, rounded"
        f" up), {local.note}."
    )


def not_guaranteed(result: SimulationResult) -> list[str]:
    """Conclusions that the page does not support."""
    measured = "The holdout is public by declaration. Rows in it are not protected."
    if not result.on_holdout:
        measured = (
            "Every metric on this page is measured on the clients' own rows, and is neither"
            " protected nor a test of the model. Declare a public holdout to have one."
        )
    return [
        "This is a simulation from a seed: its noise can be drawn again by anyone who knows the"
        " seed, so it protects nobody. The certificate is that of the campaign run on devices,"
        " whose noise comes from the operating system.",
        measured,
        "Choices made by looking at clients' data, such as tuning on this page, are not covered:"
        " each try would have to be accounted for.",
        "The occupancy, the dummies and every other count on this page are known to a simulation"
        " only. A real campaign publishes its models, and none of these.",
    ]


def _epsilon(epsilon: float) -> str:
    return f"ε{SPACE}≤{SPACE}{numbers.up(epsilon)}"


def _delta(certificate: Certificate) -> str:
    return f"δ{SPACE}={SPACE}{numbers.nearest(certificate.delta)}"


def _article(metric: str) -> str:
    name = numbers.metric_name(metric)
    return f"{'an' if name[0] in 'aeiouA' else 'a'} {name} of"
