"""Numbers and sentences of a report about metrics, certificate and limits of a simulation.

The functions return plain text, which ``report.html`` escapes. Bounds are rounded to the safe side,
and infinite numbers are a dash. A dummy is a report without data,
which the server draws in place of a missing report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from checkins import formatting
from checkins.accounting import Adjacency, Certificate
from checkins.accounting.certificate import UNIT
from checkins.simulation.baselines import Baseline
from checkins.simulation.result import BaselineResult, SimulationResult

THIS = "random check-ins"
"""Name of the simulated campaign in a comparison with other methods."""
METHOD_NAMES = {
    Baseline.NON_PRIVATE: "non-private",
    Baseline.POISSON: "Poisson DP-SGD",
    Baseline.SHUFFLING: "shuffling",
    Baseline.NO_AMPLIFICATION: "no amplification",
}
CHANGE = {
    Adjacency.ADD_REMOVE: "Adding or removing any one client",
    Adjacency.REPLACE_ONE: "Changing all of any one client's data",
}
CERTIFICATE_METHODS = {
    "exact": "computed exactly from the releases' distributions, for any number of clients",
    "exact-population": "computed exactly, assuming the stated number of clients",
    "paper": "by the paper's theorem",
    "no-amplification": "the epsilon of one report, without amplification by random slots",
}
SPACE = "\N{NO-BREAK SPACE}"
MISSING, finite = formatting.MISSING, formatting.finite
up, down, nearest = formatting.page_up, formatting.page_down, formatting.page_nearest


def finite_values(values: Iterable[object]) -> list[float]:
    return [number for number in map(finite, values) if number is not None]


def count(value: object) -> str:
    """Return a count, rounded to an integer, with thousands separators.

    >>> count(17549), count(20311.4), count(None)
    ('17,549', '20,311', '–')
    """
    number = finite(value)
    return MISSING if number is None else f"{round(number):,}"


def short_count(value: object) -> str:
    """Return a large count with three digits.

    >>> short_count(335_210), short_count(1_200_000), short_count(999_600), short_count(812)
    ('335 thousand', '1.2 million', '1 million', '812')
    """
    number = finite(value)
    if number is None:
        return MISSING
    rounded = float(f"{number:.3g}")
    for size, name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if rounded >= max(size, 1e4):
            return f"{rounded / size:g} {name}"
    return f"{round(number):,}"


def compact(value: object) -> str:
    """Return a number in the short notation of an axis.

    >>> compact(5000.0), compact(20_000.0), compact(1e6), compact(5e13), compact(0.5)
    ('5,000', '20k', '1M', '5·10¹³', '0.5')
    """
    number = finite(value)
    if number is None or not 1e4 <= abs(number) < 1e12:
        return nearest(value)
    size, name = next(
        step for step in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(number) >= step[0]
    )
    return f"{nearest(number / size)}{name}"


def metric_name(name: str) -> str:
    return "AUC" if name == "auc" else name


def metric_value(name: str, value: object) -> str:
    """Return a metric as text: accuracy in per cent, others with four decimals.

    >>> metric_value("accuracy", 0.90123), metric_value("auc", 0.845), metric_value("loss", None)
    ('90.12 %', '0.8450', '–')
    """
    number = finite(value)
    if number is None:
        return MISSING
    if name == "accuracy":
        return f"{100.0 * number:.2f} %"
    return f"{number:.4f}" if abs(number) < 10.0 else nearest(number)


def deviation(name: str, value: object) -> str:
    """Return the standard deviation over seeds, in the unit of the metric; empty with one seed.

    >>> deviation("accuracy", 0.00213), deviation("auc", 0.00213), deviation("auc", None)
    ('± 0.21', '± 0.0021', '')
    """
    number = finite(value)
    if number is None:
        return ""
    if name == "accuracy":
        return f"± {100.0 * number:.2f}"
    return f"± {number:.4f}" if number < 1.0 else f"± {nearest(number, 2)}"


def measured_on(result: SimulationResult) -> str:
    """Name the rows that the metrics are measured on."""
    return "the public holdout" if result.on_holdout else "the clients' own rows"


def spread(one: SimulationResult | BaselineResult, metric: str) -> str:
    """Return the standard deviation of a metric over seeds; empty with one seed."""
    return deviation(metric, (one.spread or {}).get(metric))


def measured(one: SimulationResult | BaselineResult, metric: str) -> str:
    """Return the mean of a metric over seeds, with its standard deviation if there are several."""
    return f"{metric_value(metric, one.metrics.get(metric))} {spread(one, metric)}".strip()


def same_epsilon(result: SimulationResult, one: BaselineResult) -> bool:
    """Return True if the epsilons of campaign and baseline differ by at most one per cent."""
    own, other = finite(result.certificate.epsilon), finite(one.baseline.epsilon)
    return own is not None and other is not None and abs(own - other) <= 0.01 * own


def subtitle(result: SimulationResult) -> str:
    """Return the line under the title, which names clients, data, model and protocol."""
    return (
        "Simulated on a computer: no device took part."
        f" {count(result.scenario.clients)} clients on {result.data.name},"
        f" {result.model} model, {result.campaign.design.protocol} protocol,"
        f" {count(result.slots)} slots."
    )


def scenario(result: SimulationResult) -> str:
    """Return the assumptions about clients; empty if all clients of the data are always online."""
    assumed, lines = result.scenario, []
    if result.reused:
        lines.append("several simulated clients hold the same rows, because the data has too few")
    if str(assumed.availability) != "always":
        lines.append(f"availability is {assumed.availability}")
    if assumed.dropout:
        lines.append(f"{nearest(100 * assumed.dropout)} % of chosen clients drop out")
    return f"In this run, {'; '.join(lines)}." if lines else ""


def partial(result: SimulationResult) -> str:
    """Return how many slots a stopped simulation reached; empty if it is complete."""
    if result.complete:
        return ""
    ended = sum(seed.complete for seed in result.seeds)
    stopped_at = [seed.slots for seed in result.seeds if not seed.complete]
    reached = ""
    if stopped_at:
        planned = result.campaign.design.slots * result.campaign.repeats
        reached = f"; another reached slot {max(stopped_at):,} of {planned:,}"
    return (
        f"Partial result: the simulation was stopped. {ended} of {len(result.seeds)} seeds are"
        f" complete{reached}. The certificate covers the slots of the longest seed."
    )


def over_budget(result: SimulationResult) -> str:
    """Return a warning that epsilon exceeds the budget; empty if it does not."""
    if result.within_budget:
        return ""
    epsilon = finite(result.certificate.epsilon)
    bound = "no ε could be bounded" if epsilon is None else f"it has {_epsilon(epsilon)}"
    return (
        f"Over its budget: {bound}, and the budget is"
        f" {down(result.campaign.budget.epsilon)}."
        " A real campaign would stop before its end."
    )


def summary(result: SimulationResult) -> list[str]:
    """Return three sentences: on the metric, on the guarantee and on the comparison."""
    return [_learned(result), guarantee(result.certificate), _compared(result)]


def _learned(result: SimulationResult) -> str:
    metric, who = result.headline, count(result.scenario.clients)
    if metric is None:
        return (
            f"{who} simulated clients each chose a random slot, but the model they trained"
            " diverged, because its rate is too large for this noise."
        )
    rows = f"{count(result.data.holdout_rows)} public rows that were not used in training"
    if not result.on_holdout:
        rows = "the clients' own rows, which it was trained on"
    sentence = (
        f"{who} simulated clients each chose a random slot, and the model they trained reaches"
        f" {_article(metric)} {metric_value(metric, result.metrics[metric])} on {rows}"
    )
    non_private = result.baseline(Baseline.NON_PRIVATE)
    if non_private is None:
        return f"{sentence}."
    best = metric_value(metric, non_private.metrics.get(metric))
    return f"{sentence}. Without privacy, the same model reaches {best}."


def guarantee(certificate: Certificate) -> str:
    """State the guarantee of a certificate in one sentence, with e^epsilon rounded up."""
    epsilon = finite(certificate.epsilon)
    if epsilon is None:
        return "No ε could be bounded for this campaign, so nothing is guaranteed to its clients."
    factor = up(math.exp(epsilon)) if epsilon < 700.0 else "any number of"
    delta = nearest(certificate.delta)
    return (
        f"{CHANGE[certificate.adjacency]} makes no conclusion from all the"
        f" released models more than {factor} times as likely, apart from a probability of {delta}"
        f" ({_epsilon(epsilon)}, {_delta(certificate)})."
    )


def _compared(result: SimulationResult) -> str:
    metric, poisson = result.headline, result.baseline(Baseline.POISSON)
    if metric is None or poisson is None:
        return dummies(result)
    value = metric_value(metric, poisson.metrics.get(metric))
    start = f"For an ε of {up(poisson.baseline.epsilon)}"
    if same_epsilon(result, poisson):
        start = "At the same ε"
    return (
        f"{start}, DP-SGD with Poisson sampling reaches {value}, but its server must be able to"
        " reach any client at any time. With random check-ins, clients contact the server."
    )


def dummies(result: SimulationResult) -> str:
    """State the number of check-ins and of dummies, and the expected number of dummies."""
    came = f"{count(result.check_ins)} clients checked in"
    if result.dummies_expected is None:
        return (
            f"{came}, in {count(result.slots)} slots. In this design the server draws no dummies."
        )
    return (
        f"{came}, and {count(result.dummies)} dummies filled the slots that had too few"
        f" (theory expects {count(result.dummies_expected)}), so that the releases do not"
        " reveal how many clients came."
    )


def comparison(result: SimulationResult) -> str:
    """State what the compared methods have in common."""
    private = [one for one in result.available_baselines if one.kind is not Baseline.NON_PRIVATE]
    budget = "Each private method has the ε that the table shows"
    if all(same_epsilon(result, one) for one in private):
        budget = "Every private method has the same ε and δ, and therefore different noise"
    return f"All methods have the same model and data. {budget}."


def spent(result: SimulationResult) -> str:
    """Compare the epsilon of the certificate with the budget."""
    epsilon, budget = finite(result.certificate.epsilon), result.campaign.budget.epsilon
    start = "Each release adds to ε. The curve shows ε if the campaign stops after a slot."
    if epsilon is None:
        return start
    if not epsilon <= budget:
        return f"{start} The whole campaign exceeds its budget of {nearest(budget)}."
    share = up(100.0 * epsilon / budget, 2)
    return f"{start} The whole campaign uses {share} % of its budget of {nearest(budget)}."


def certificate_lines(certificate: Certificate) -> list[str]:
    """Return the statements of a certificate, one per line."""
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
    """State the proven upper bound on epsilon and, if there is one, the lower bound."""
    upper = f"{_epsilon(certificate.epsilon)} is proven (rounded up)"
    lower = finite(certificate.epsilon_lower)
    if lower is None or lower == 0.0:
        return f"{upper}."
    of = certificate.epsilon_lower_of
    return f"{upper}; for {of}, no ε below {down(lower)} is true (rounded down)."


def _against_server(certificate: Certificate) -> str:
    """State the guarantee if the server itself is the adversary."""
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
    """Return statements about what the certificate does not cover."""
    measured = "The holdout is public by declaration. Its rows are not protected."
    if not result.on_holdout:
        measured = (
            "Every metric on this page is measured on the clients' own rows, and is neither"
            " protected nor a test of the model. Declare a public holdout to test the model."
        )
    return [
        "This is a simulation from a seed. Anyone who knows the seed can compute its noise, so"
        " it protects nobody. The certificate applies to the campaign on devices, where the"
        " operating system provides the randomness.",
        measured,
        "Choices made by looking at clients' data, such as tuning on this page, are not covered."
        " The accounting would have to include every attempt.",
        "Only a simulation knows the check-ins per slot, the dummies and the other counts on this"
        " page. A real campaign publishes its models, but no counts.",
    ]


def _epsilon(epsilon: float) -> str:
    return f"ε{SPACE}≤{SPACE}{up(epsilon)}"


def _delta(certificate: Certificate) -> str:
    return f"δ{SPACE}={SPACE}{nearest(certificate.delta)}"


def _article(metric: str) -> str:
    name = metric_name(metric)
    return f"{'an' if name[0] in 'aeiouA' else 'a'} {name} of"
