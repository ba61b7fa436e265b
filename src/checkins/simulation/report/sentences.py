"""Numbers and sentences of the page about metrics, certificate and limits of a simulation.

The page is the file report.html. The functions return plain text, which the module ``html`` of this
package escapes. Upper bounds are rounded up, lower bounds down. A dash stands for an infinite or
missing number. A dummy is a random report without data, which the server uses in place of the
missing report of a client.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from checkins import formatting
from checkins.accounting import Adjacency, Certificate
from checkins.accounting.certificate import PRIVACY_UNIT
from checkins.simulation.baselines import Baseline
from checkins.simulation.result import BaselineResult, SimulationResult

THIS_METHOD = "random check-ins"
"""Name of the simulated campaign in a comparison with other methods."""
AVERAGE = "average of models"
"""Name of the average of the campaign's released models in a comparison."""
METHOD_NAMES = {
    Baseline.NON_PRIVATE: "non-private",
    Baseline.POISSON: "Poisson DP-SGD",
    Baseline.SHUFFLING: "shuffling",
    Baseline.NO_AMPLIFICATION: "no amplification",
}
NEIGHBOUR_CHANGES = {
    Adjacency.ADD_REMOVE: "Adding or removing any one client",
    Adjacency.REPLACE_ONE: "Changing all of any one client's data",
}
CERTIFICATE_METHODS = {
    "exact": "computed exactly from the releases' distributions, for any number of clients",
    "exact-population": "computed exactly, assuming the stated number of clients",
    "paper": "by the paper's theorem",
    "no-amplification": "the epsilon of one report, without amplification by random slots",
}
NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
MISSING, finite_or_none = formatting.MISSING, formatting.finite_or_none
rounded_up, rounded_down = formatting.up_for_page, formatting.down_for_page
rounded = formatting.nearest_for_page


def finite_values(values: Iterable[object]) -> list[float]:
    return [number for number in map(finite_or_none, values) if number is not None]


def count_text(value: object) -> str:
    """Return a count, rounded to an integer, with thousands separators.

    >>> count_text(17549), count_text(20311.4), count_text(None)
    ('17,549', '20,311', '–')
    """
    number = finite_or_none(value)
    return MISSING if number is None else f"{round(number):,}"


def short_count(value: object) -> str:
    """Return a count with three digits and the word thousand, million or billion, if it is large.

    >>> short_count(335_210), short_count(1_200_000), short_count(999_600), short_count(812)
    ('335 thousand', '1.2 million', '1 million', '812')
    """
    number = finite_or_none(value)
    if number is None:
        return MISSING
    rounded = float(f"{number:.3g}")
    for unit, unit_name in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if rounded >= max(unit, 1e4):
            return f"{rounded / unit:g} {unit_name}"
    return f"{round(number):,}"


def axis_number(value: object) -> str:
    """Return a number in the short notation of an axis.

    >>> [axis_number(value) for value in (5000.0, 20_000.0, 1e6, 5e13, 0.5)]
    ['5,000', '20k', '1M', '5·10¹³', '0.5']
    """
    number = finite_or_none(value)
    if number is None or not 1e4 <= abs(number) < 1e12:
        return rounded(value)
    unit, suffix = next(
        step for step in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if abs(number) >= step[0]
    )
    return f"{rounded(number / unit)}{suffix}"


def metric_name(name: str) -> str:
    return "AUC" if name == "auc" else name


def metric_text(name: str, value: object) -> str:
    """Return a metric as text: accuracy in per cent, other metrics with four decimals.

    >>> metric_text("accuracy", 0.90123), metric_text("auc", 0.845), metric_text("loss", None)
    ('90.12 %', '0.8450', '–')
    """
    number = finite_or_none(value)
    if number is None:
        return MISSING
    if name == "accuracy":
        return f"{100.0 * number:.2f} %"
    return f"{number:.4f}" if abs(number) < 10.0 else rounded(number)


def deviation_text(name: str, value: object) -> str:
    """Return the standard deviation over seeds, in the unit of the metric; empty with one seed.

    >>> deviation_text("accuracy", 0.00213), deviation_text("auc", 0.00213)
    ('± 0.21', '± 0.0021')
    """
    number = finite_or_none(value)
    if number is None:
        return ""
    if name == "accuracy":
        return f"± {100.0 * number:.2f}"
    return f"± {number:.4f}" if number < 1.0 else f"± {rounded(number, 2)}"


def data_name(result: SimulationResult) -> str:
    """Return the name of the rows on which the metrics are measured."""
    return "the public holdout" if result.on_holdout else "the clients' own rows"


def spread_text(result: SimulationResult | BaselineResult, metric: str) -> str:
    """Return the standard deviation of a metric over seeds; empty with one seed."""
    return deviation_text(metric, (result.spread or {}).get(metric))


def average_with_spread(result: SimulationResult | BaselineResult, metric: str) -> str:
    """Return a metric of the average of the models, with its standard deviation over seeds."""
    value = result.average_metrics.get(metric)
    deviation = deviation_text(metric, (result.average_spread or {}).get(metric))
    return f"{metric_text(metric, value)} {deviation}".strip()


def metric_with_spread(result: SimulationResult | BaselineResult, metric: str) -> str:
    """Return the mean of a metric over seeds, with its standard deviation if there are several."""
    return (
        f"{metric_text(metric, result.metrics.get(metric))} {spread_text(result, metric)}".strip()
    )


def has_same_epsilon(result: SimulationResult, baseline: BaselineResult) -> bool:
    """Return True if the epsilons of campaign and baseline differ by at most one per cent."""
    campaign_epsilon, baseline_epsilon = (
        finite_or_none(result.certificate.epsilon),
        finite_or_none(baseline.baseline.epsilon),
    )
    return (
        campaign_epsilon is not None
        and baseline_epsilon is not None
        and abs(campaign_epsilon - baseline_epsilon) <= 0.01 * campaign_epsilon
    )


def subtitle(result: SimulationResult) -> str:
    """Return the line under the title, which names clients, data, model and protocol."""
    return (
        "Simulated on a computer: no device took part."
        f" {count_text(result.scenario.clients)} clients on {result.data.name},"
        f" {result.model} model, {result.campaign.design.protocol} protocol,"
        f" {count_text(result.slots)} slots."
    )


def scenario_sentence(result: SimulationResult) -> str:
    """State the assumptions about clients; empty if all clients of the data are always online."""
    scenario, assumptions = result.scenario, []
    if result.clients_share_rows:
        shared = "several simulated clients hold the same rows"
        assumptions.append(f"{shared}, because the data has too few")
    if str(scenario.availability) != "always":
        assumptions.append(f"availability is {scenario.availability}")
    if scenario.dropout:
        assumptions.append(f"{rounded(100 * scenario.dropout)} % of chosen clients drop out")
    return f"In this run, {'; '.join(assumptions)}." if assumptions else ""


def partial_notice(result: SimulationResult) -> str:
    """State which slots a stopped simulation reached; empty if the simulation is complete."""
    if result.complete:
        return ""
    complete_seeds = sum(seed.complete for seed in result.seeds)
    stopped_at = [seed.slots for seed in result.seeds if not seed.complete]
    reached = ""
    if stopped_at:
        planned = result.campaign.design.slots * result.campaign.repeats
        reached = f"; another reached slot {max(stopped_at):,} of {planned:,}"
    return (
        "Partial result: the simulation was stopped."
        f" {complete_seeds} of {len(result.seeds)} seeds are complete{reached}."
        " The certificate covers the slots of the longest seed."
    )


def over_budget_notice(result: SimulationResult) -> str:
    """Return a warning that epsilon exceeds the budget; empty if it does not."""
    if result.within_budget:
        return ""
    epsilon = finite_or_none(result.certificate.epsilon)
    bound = "no bound on ε is known" if epsilon is None else f"it has {_epsilon(epsilon)}"
    return (
        f"Over its budget: {bound}, and the budget is"
        f" {rounded_down(result.campaign.budget.epsilon)}."
        " A real campaign would stop before its end."
    )


def summary_sentences(result: SimulationResult) -> list[str]:
    """Return three sentences: on the metric, on the guarantee and on the comparison."""
    guarantee = guarantee_sentence(result.certificate)
    return [_metric_sentence(result), guarantee, _poisson_sentence(result)]


def _metric_sentence(result: SimulationResult) -> str:
    metric, clients = result.headline, count_text(result.scenario.clients)
    if metric is None:
        return (
            f"{clients} simulated clients each chose a random slot, but the model they trained"
            " diverged, because its rate is too large for this noise."
        )
    rows = f"{count_text(result.data.holdout_rows)} public rows that were not used in training"
    if not result.on_holdout:
        rows = "the clients' own rows, which it was trained on"
    sentence = (
        f"{clients} simulated clients each chose a random slot, and the model they trained reaches"
        f" {_name_with_article(metric)} {metric_text(metric, result.metrics[metric])} on {rows}"
    )
    non_private = result.baseline(Baseline.NON_PRIVATE)
    if non_private is None:
        return f"{sentence}."
    non_private_value = metric_text(metric, non_private.metrics.get(metric))
    return f"{sentence}. Without privacy, the same model reaches {non_private_value}."


def guarantee_sentence(certificate: Certificate) -> str:
    """State the guarantee of a certificate in one sentence, with e^epsilon rounded up."""
    epsilon = finite_or_none(certificate.epsilon)
    if epsilon is None:
        return "No bound on ε is known for this campaign, so nothing is guaranteed to its clients."
    factor = f"at most a factor of {rounded_up(math.exp(min(epsilon, 700.0)))}"
    delta = rounded(certificate.delta)
    return (
        f"{NEIGHBOUR_CHANGES[certificate.adjacency]} changes the probability of any conclusion from"
        f" all released models by {factor if epsilon < 700.0 else 'any factor'}, and by"
        f" {delta} more ({_epsilon(epsilon)}, {_delta(certificate)})."
    )


def _poisson_sentence(result: SimulationResult) -> str:
    """Compare with Poisson sampling or, if it was not run, state the numbers of dummies."""
    metric, poisson = result.headline, result.baseline(Baseline.POISSON)
    if metric is None or poisson is None:
        return dummies_sentence(result)
    value = metric_text(metric, poisson.metrics.get(metric))
    start = f"For an ε of {rounded_up(poisson.baseline.epsilon)}"
    if has_same_epsilon(result, poisson):
        start = "At the same ε"
    return (
        f"{start}, DP-SGD with Poisson sampling reaches {value}, but its server must be able to"
        " reach any client at any time. With random check-ins, clients contact the server."
    )


def dummies_sentence(result: SimulationResult) -> str:
    """State the numbers of check-ins and of dummies, and the expected number of dummies."""
    check_ins = f"{count_text(result.check_ins)} clients checked in"
    if result.dummies_expected is None:
        slots = f"in {count_text(result.slots)} slots"
        return f"{check_ins}, {slots}. In this design the server draws no dummies."
    return (
        f"{check_ins}, and {count_text(result.dummies)} dummies filled the slots that had too few"
        f" (theory expects {count_text(result.dummies_expected)}), so that the releases do not"
        " reveal how many clients came."
    )


def comparison_sentence(result: SimulationResult) -> str:
    """State which properties the compared methods have in common."""
    baselines = result.available_baselines
    private = [each for each in baselines if each.kind is not Baseline.NON_PRIVATE]
    epsilon_clause = "Each private method has the ε that the table shows"
    if all(has_same_epsilon(result, baseline) for baseline in private):
        epsilon_clause = "Every private method has the same ε and δ, and therefore different noise"
    return f"All methods have the same model and data. {epsilon_clause}."


def budget_sentence(result: SimulationResult) -> str:
    """Compare the epsilon of the certificate with the budget."""
    epsilon, budget = finite_or_none(result.certificate.epsilon), result.campaign.budget.epsilon
    start = "Each release adds to ε. The curve shows ε if the campaign stops after a slot."
    if epsilon is None:
        return start
    if not epsilon <= budget:
        return f"{start} The whole campaign exceeds its budget of {rounded(budget)}."
    share = rounded_up(100.0 * epsilon / budget, 2)
    return f"{start} The whole campaign uses {share} % of its budget of {rounded(budget)}."


def certificate_lines(certificate: Certificate) -> list[str]:
    """Return the statements of a certificate, one per line."""
    method_name = certificate.method
    method = (
        f"{method_name}: {CERTIFICATE_METHODS[method_name]}"
        if method_name in CERTIFICATE_METHODS
        else method_name
    )
    lines = [
        _epsilon_sentence(certificate),
        f"{_delta(certificate)}, neighbours: {certificate.adjacency}.",
        f"Protected: {PRIVACY_UNIT}, in all releases together.",
        f"Method: {method}.",
        _local_guarantee_sentence(certificate),
    ]
    if certificate.campaigns > 1:
        lines.append(f"Composed over {certificate.campaigns:,} runs with independent randomness.")
    return lines


def _epsilon_sentence(certificate: Certificate) -> str:
    """State the proven upper bound on epsilon and, if there is one, the lower bound."""
    upper = f"{_epsilon(certificate.epsilon)} is proven (rounded up)"
    lower = finite_or_none(certificate.epsilon_lower)
    if lower is None or lower == 0.0:
        return f"{upper}."
    design_name = certificate.epsilon_lower_of
    return f"{upper}; for {design_name}, no ε below {rounded_down(lower)} is true (rounded down)."


def _local_guarantee_sentence(certificate: Certificate) -> str:
    """State the guarantee if the server itself is the adversary."""
    local_guarantee = certificate.against_server
    if local_guarantee is None:
        return "If the server is the adversary: not stated."
    if not math.isfinite(local_guarantee.epsilon):
        return f"If the server is the adversary: {local_guarantee.note}."
    return (
        f"If the server is the adversary: {_epsilon(local_guarantee.epsilon)}"
        f" ({Adjacency.REPLACE_ONE}, rounded up), {local_guarantee.note}."
    )


def limitations(result: SimulationResult) -> list[str]:
    """Return statements about what the certificate does not cover."""
    holdout_sentence = "The holdout is public by declaration. Its rows are not protected."
    if not result.on_holdout:
        holdout_sentence = (
            "Every metric on this page is measured on the clients' own rows, and is neither"
            " protected nor a test of the model. Declare a public holdout to test the model."
        )
    return [
        "This is a simulation from a seed. Anyone who knows the seed can compute its noise, so"
        " it protects nobody. The certificate applies to the campaign on devices, where the"
        " operating system provides the randomness.",
        holdout_sentence,
        "Choices made by looking at clients' data, such as tuning on this page, are not covered."
        " The accounting would have to include every attempt.",
        "Only a simulation knows the check-ins per slot, the dummies and the other counts on this"
        " page. A real campaign publishes its models, but no counts.",
    ]


def _epsilon(epsilon: float) -> str:
    return f"ε{NO_BREAK_SPACE}≤{NO_BREAK_SPACE}{rounded_up(epsilon)}"


def _delta(certificate: Certificate) -> str:
    return f"δ{NO_BREAK_SPACE}={NO_BREAK_SPACE}{rounded(certificate.delta)}"


def _name_with_article(metric: str) -> str:
    name = metric_name(metric)
    return f"{'an' if name[0] in 'aeiouA' else 'a'} {name} of"
