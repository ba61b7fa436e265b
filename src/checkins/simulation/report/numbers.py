"""Numbers of a report as text. Bounds are rounded to the safe side; infinite numbers are a dash."""

from __future__ import annotations

from collections.abc import Iterable

from checkins import formatting

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


def metric(name: str, value: object) -> str:
    """Return a metric as text: accuracy in per cent, others with four decimals.

    >>> metric("accuracy", 0.90123), metric("auc", 0.845), metric("loss", None)
    ('90.12 %', '0.8450', '–')
    """
    number = finite(value)
    if number is None:
        return MISSING
    if name == "accuracy":
        return f"{100.0 * number:.2f} %"
    return f"{number:.4f}" if abs(number) < 10.0 else nearest(number)


def spread(name: str, value: object) -> str:
    """Return the standard deviation over seeds, in the unit of the metric; empty with one seed.

    >>> spread("accuracy", 0.00213), spread("auc", 0.00213), spread("auc", None)
    ('± 0.21', '± 0.0021', '')
    """
    number = finite(value)
    if number is None:
        return ""
    if name == "accuracy":
        return f"± {100.0 * number:.2f}"
    return f"± {number:.4f}" if number < 1.0 else f"± {nearest(number, 2)}"
