"""Sentences of a report: what a campaign learned, what is promised, and what is not.

Plain text; whoever puts it on a page escapes it.
"""

from __future__ import annotations

import math

from checkins.simulation.report import facts, numbers
from checkins.simulation.report.facts import Result

ADJACENCY = {
    "add-remove": "Adding any one client, or taking one away,",
    "replace-one": "Changing all of any one client's data",
}
METHOD = {
    "exact": "computed exactly from the releases' distributions, whoever else takes part",
    "exact-population": "computed exactly, with the number of clients as an assumption",
    "paper": "by the paper's theorem",
    "no-amplification": "the price of one report, random slots not counted",
}
SPACE = "\N{NO-BREAK SPACE}"


def subtitle(result: Result) -> str:
    """One line under the title: who, on what, how."""
    data, model = result.get("data") or {}, result.get("model") or {}
    scenario = result.get("scenario") or {}
    who = f"{numbers.count(scenario.get('clients', data.get('clients')))} clients"
    kind = facts.setting(result, "protocol", "kind")
    how = f", {kind} protocol" if isinstance(kind, str) else ""
    return (
        f"Simulated on a computer: no device took part. {who} on {data.get('name', 'data')},"
        f" {model.get('name', 'a')} model{how}, {numbers.count(result.get('slots'))} slots."
    )


def scenario(result: Result) -> str:
    """Who was there, where that is not simply everyone once."""
    found, said = result.get("scenario") or {}, []
    if found.get("reused"):
        said.append("clients of the data stand for several each, to reach the population")
    if found.get("availability") not in (None, "always"):
        said.append(f"availability is {found['availability']}")
    if numbers.finite(found.get("dropout")):
        said.append(f"{numbers.nearest(100 * found['dropout'])} % drop out after being chosen")
    return f"In this run, {'; '.join(said)}." if said else ""


def partial(result: Result) -> str:
    """What is missing of a run that was stopped; empty for a whole one."""
    if result.get("complete", True):
        return ""
    seeds = result.get("seeds") or ()
    ended = [seed for seed in seeds if seed.get("complete")]
    begun = numbers.finite_values(s.get("slots_done") for s in seeds if not s.get("complete"))
    reached = ""
    if begun:
        slots = numbers.count(result.get("slots"))
        reached = f"; another reached slot {numbers.count(max(begun))} of {slots}"
    return (
        f"Partial result: the simulation was stopped. {len(ended)} of {len(seeds)} seeds came to"
        f" their end{reached}. The certificate is that of the whole campaign."
    )


def over_budget(result: Result) -> str:
    """That a campaign costs too much; empty for one that keeps its budget.

    >>> over_budget({"within_budget": False, "certificate": {"epsilon": 3.2}, "budget": {}})
    'Over its budget: it costs ε\xa0≤\xa03.2; a real campaign would stop before its end.'
    """
    if not facts.over_budget(result):
        return ""
    epsilon = numbers.finite(facts.certificate(result).get("epsilon"))
    allowed = facts.budget(result)
    costs = "no ε could be bounded" if epsilon is None else f"it costs {_price(epsilon)}"
    limit = "" if allowed is None else f", its budget is {numbers.down(allowed)}"
    return f"Over its budget: {costs}{limit}; a real campaign would stop before its end."


def meaning(result: Result) -> list[str]:
    """What it means, in three sentences."""
    return [_learned(result), promise(result), _compared(result)]


def _learned(result: Result) -> str:
    metric, data = facts.headline(result), result.get("data") or {}
    who = numbers.count((result.get("scenario") or {}).get("clients", data.get("clients")))
    if metric is None and facts.diverged(result):
        return (
            f"{who} simulated clients each chose their own moment, but the model they trained"
            " diverged: its rate is too large for this noise."
        )
    if metric is None:
        return (
            f"{who} simulated clients each chose their own moment and trained a model together;"
            " without a public holdout nothing here says how good it is."
        )
    value = (result.get("metrics") or {}).get(metric)
    rows = f"{numbers.count(data.get('holdout_rows'))} public rows it never saw"
    if not facts.on_holdout(result):
        rows = "the clients' own rows, which it was trained on"
    sentence = (
        f"{who} simulated clients each chose their own moment, and the model they trained reaches"
        f" {_article(metric)} {numbers.metric(metric, value)} on {rows}"
    )
    open_model = facts.baseline(result, "non-private")
    if open_model is None:
        return f"{sentence}."
    best = numbers.metric(metric, (open_model.get("metrics") or {}).get(metric))
    return f"{sentence}; the same model reaches {best} without any privacy."


def promise(result: Result) -> str:
    """The guarantee of the certificate in one sentence, rounded up.

    >>> promise({"certificate": {"epsilon": 0.25, "delta": 1e-6, "adjacency": "add-remove"}})
    'Adding any one client, ... more than 1.285 times as likely, ...10⁻⁶).'
    """
    certificate = facts.certificate(result)
    epsilon = numbers.finite(certificate.get("epsilon"))
    if epsilon is None:
        return "No ε could be bounded for this campaign, so nothing is promised to its clients."
    adjacency = str(certificate.get("adjacency"))
    factor = numbers.up(math.exp(epsilon)) if epsilon < 700.0 else "any number of"
    delta = numbers.nearest(certificate.get("delta"))
    return (
        f"{ADJACENCY.get(adjacency, f'A change by {adjacency}')} makes nothing that someone could"
        f" conclude from all the released models more than {factor} times as likely, apart from a"
        f" chance of {delta} ({_price(epsilon)}, {_delta(certificate)})."
    )


def _compared(result: Result) -> str:
    metric, poisson = facts.headline(result), facts.baseline(result, "poisson")
    if metric is not None and poisson is not None:
        value = numbers.metric(metric, (poisson.get("metrics") or {}).get(metric))
        price = f"For an ε of {numbers.up(poisson.get('epsilon'))}"
        if facts.same_price(result, poisson):
            price = "At the same price"
        return (
            f"{price}, DP-SGD with Poisson sampling reaches {value}, but needs a server"
            " that can call any client at any time; here nobody is ever called."
        )
    return dummies(result)


def dummies(result: Result) -> str:
    """How many stand-ins were needed, beside what theory expects."""
    used, expected = numbers.finite(result.get("dummies")), result.get("dummies_expected")
    if used is None or numbers.finite(expected) is None:
        return (
            f"{numbers.count(result.get('check_ins'))} clients checked in, in"
            f" {numbers.count(result.get('slots'))} slots; theory has no number of dummies for this"
            " protocol."
        )
    return (
        f"{numbers.count(result.get('check_ins'))} clients checked in, and"
        f" {numbers.count(used)} dummies filled the slots that had too few"
        f" (theory expects {numbers.count(expected)}), so that nobody outside can tell how many"
        " came."
    )


def comparison(result: Result) -> str:
    """What the methods have in common."""
    private = [one for one in facts.available(result) if one.get("name") != "non-private"]
    price = "each private method at the ε of the table"
    if all(facts.same_price(result, one) for one in private):
        price = "every private method has the same ε and δ to spend, so the noise differs"
    return f"The same model and data; {price}."


def spent(result: Result) -> str:
    """The price beside the budget."""
    epsilon = numbers.finite(facts.certificate(result).get("epsilon"))
    allowed = facts.budget(result)
    start = "Each release adds to the price; a campaign that stops early has paid this much."
    if epsilon is None or allowed is None:
        return start
    if not epsilon <= allowed:
        return f"{start} The whole costs more than its budget of {numbers.nearest(allowed)}."
    share = numbers.up(100.0 * epsilon / allowed, 2) if allowed > 0.0 else "100"
    return f"{start} The whole takes {share} % of the budget of {numbers.nearest(allowed)}."


def method(result: Result) -> str:
    """How the certificate was found."""
    name = facts.said(facts.certificate(result), "method")
    return f"{name}: {METHOD[name]}" if name in METHOD else name


def interval(result: Result) -> str:
    """Which epsilon is proven, which would be false, and how both are rounded."""
    certificate = facts.certificate(result)
    upper, lower = certificate.get("epsilon"), numbers.finite(certificate.get("epsilon_lower"))
    said = f"{_price(upper)} is proven (rounded up)"
    if lower is None or lower == 0.0:
        return f"{said}."
    of = certificate.get("epsilon_lower_of") or "this design"
    return f"{said}; for {of}, no ε below {numbers.down(lower)} is true (rounded down)."


def against_server(certificate: Result) -> str:
    """What holds if the server itself is the adversary."""
    local = certificate.get("against_server")
    if not isinstance(local, dict):
        return "Against the server itself: not stated."
    if numbers.finite(local.get("epsilon")) is None:
        return f"Against the server itself: {local.get('note')}."
    return (
        f"Against the server itself: {_price(local['epsilon'])} ({local.get('adjacency')},"
        f" rounded up), {local.get('note')}."
    )


def not_promised(result: Result) -> list[str]:
    """What nobody may take from the page."""
    measured = "The holdout is public by declaration. Rows in it are not protected."
    if not facts.on_holdout(result):
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
        " each try would have to be paid for.",
        "The occupancy, the dummies and every other count on this page are known to a simulation"
        " only. A real campaign publishes its models, and none of these.",
    ]


def promised(result: Result) -> list[str]:
    """What the certificate says, line by line."""
    certificate = facts.certificate(result)
    lines = [
        interval(result),
        f"{_delta(certificate)}, neighbours: {facts.said(certificate, 'adjacency')}.",
        f"Protected: {certificate.get('unit', 'one client')}, in all releases together.",
        f"Method: {method(result)}.",
        against_server(certificate),
    ]
    runs = numbers.finite(certificate.get("campaigns"))
    if runs is not None and runs > 1:
        lines.append(f"Composed over {numbers.count(runs)} runs with fresh coins.")
    return lines


def _price(epsilon: object) -> str:
    return f"ε{SPACE}≤{SPACE}{numbers.up(epsilon)}"


def _delta(certificate: Result) -> str:
    return f"δ{SPACE}={SPACE}{numbers.nearest(certificate.get('delta'))}"


def _article(metric: str) -> str:
    name = numbers.metric_name(metric)
    return f"{'an' if name[0] in 'aeiouA' else 'a'} {name} of"
