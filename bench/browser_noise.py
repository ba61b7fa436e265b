"""Measure the speed of exact noise in chromium, in coordinates per second of one core.

The device for browsers (``clients/js/client.js``) draws from ``crypto.getRandomValues`` in one tab,
on one thread. The fastest of several repetitions counts.
"""

from __future__ import annotations

import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from bench.measure import Section
from checkins.randomizers.device import DeviceSampler
from checkins.randomizers.grid import Grid
from checkins.randomizers.randomizer import Gaussian, Laplace
from tests.support.browser import find_chromium
from tests.support.http_server import Handler, http_server

CLIENT = Path(__file__).parents[1] / "clients" / "js" / "client.js"
DIMENSION, REPEATS = 10**6, 5
LEAST = 1e6
CASES = (
    (Gaussian(clip=1.0, noise_multiplier=1.0), 0.05),
    (Gaussian(clip=1.0, noise_multiplier=1.15), 1e-3),
    (Gaussian(clip=1.0, noise_multiplier=1.15), 1e-6),
    (Gaussian(clip=1.0, noise_multiplier=10.0), 1e-7),
    (Laplace(clip=1.0, local_epsilon=1.0), 1e-5),
)
DRAW = """async ([randomizer, dimension, repeats]) => {
  const { makeReport, noiseOf, systemBytes } = await import("/client.js");
  const began = performance.now();
  noiseOf(randomizer);
  const table = performance.now() - began;
  const update = Float64Array.from({ length: dimension }, (_, i) => Math.sin(i));
  const times = { noise: [], report: [] };
  for (let repeat = 0; repeat < repeats; repeat += 1) {
    const units = new Int32Array(dimension);
    let start = performance.now();
    noiseOf(randomizer).addTo(units);
    times.noise.push(performance.now() - start);
    start = performance.now();
    makeReport(update, randomizer, systemBytes);
    times.report.push(performance.now() - start);
  }
  return [table, Math.min(...times.noise), Math.min(...times.report)];
}"""


class _Module(Handler):
    def answer(self) -> None:
        self.say(200, CLIENT.read_bytes(), {"content-type": "text/javascript"})


def browser_noise() -> Section:
    rows, holds = [], True
    with http_server(_Module) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        page = browser.new_page()
        page.goto(f"{url}/client.js")
        for randomizer, step in CASES:
            is_gaussian = isinstance(randomizer, Gaussian)
            size = randomizer.std if is_gaussian else randomizer.scale
            amount = (
                {"kind": "gaussian", "noiseMultiplier": randomizer.noise_multiplier}
                if is_gaussian
                else {"kind": "laplace", "localEpsilon": randomizer.local_epsilon}
            )
            described = {**amount, "noiseAt": "client", "clip": randomizer.clip, "grid": step}
            table_ms, noise_ms, report_ms = page.evaluate(DRAW, [described, DIMENSION, REPEATS])
            noise, report = (1000.0 * DIMENSION / ms for ms in (noise_ms, report_ms))
            python = _python_speed(DeviceSampler(randomizer, Grid(step), DIMENSION))
            holds = holds and (not is_gaussian or min(noise, report) >= LEAST)
            rows.append(
                [
                    type(randomizer).__name__,
                    f"{size / step:,.3g}",
                    f"{noise / 1e6:.1f} million",
                    f"{report / 1e6:.1f} million",
                    f"{python / 1e6:.1f} million",
                    f"{table_ms:.0f} ms",
                ]
            )
        version = browser.version
        browser.close()
    return Section(
        "Exact noise in a browser, coordinates a second on one core",
        "In chromium, at least a million coordinates per second are clipped and get exact Gaussian"
        f" noise. Measured in version {version}.",
        holds,
        ("noise", "scale in steps", "noise alone", "clipped and noised", "Python, noise", "table"),
        rows,
    )


def _python_speed(sampler: DeviceSampler) -> float:
    sampler.dummy()
    fastest = float("inf")
    for _ in range(REPEATS):
        began = time.perf_counter()
        sampler.dummy()
        fastest = min(fastest, time.perf_counter() - began)
    return DIMENSION / fastest
