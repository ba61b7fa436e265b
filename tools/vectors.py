"""Write the conformance vectors, with which a client in another language is compared with Python.

python tools/vectors.py           write tests/vectors/*.json
python tools/vectors.py --check   exit 1 if a file is not what the Python code gives

Every vector is computed by the machines that devices run. A client passes if it gives the same
results bit for bit, except for training, where ``exp`` and ``tanh`` may differ in the last digits.
docs/browser-devices.md describes the files.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from checkins.accounting import Adjacency
from checkins.campaign import campaign_from_canonical, parse_campaign
from checkins.campaign.model import seal_of
from checkins.client import RowsTrainer
from checkins.client.clock_and_randomness import DeviceRandomness
from checkins.client.odometer import Charge, Odometer
from checkins.client.state import SavedState
from checkins.client.view import parse_view
from checkins.errors import CheckinsError
from checkins.protocol import participant, wire
from checkins.protocol.report import model_from_bytes, model_to_bytes, report_to_bytes
from checkins.protocol.rules import FixedWindow, RunSchedule, SlidingWindow
from checkins.randomizers import Gaussian, Grid, Laplace
from checkins.randomizers.integer_noise import Staircase, SymmetricNoise

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "vectors"
Vectors = list[dict[str, Any]]
LONG = 40_000
"""A number of coordinates that fill more than one chunk of 32,768."""


class Xorshift:
    """Bytes of Marsaglia's 32-bit xorshift generator, which is short in every language.

    Each request takes whole words, whose bytes are in little-endian order. ``script`` are bytes
    that the first requests get.
    """

    def __init__(self, seed: int, script: bytes = b"") -> None:
        self._word, self._script = seed, script

    def bytes(self, count: int) -> bytes:
        if self._script:
            taken, self._script = self._script[:count], self._script[count:]
            return taken + b"\0" * (count - len(taken))
        words = []
        for _ in range(-(-count // 4)):
            word = self._word
            word ^= word << 13 & 0xFFFFFFFF
            word ^= word >> 17
            word ^= word << 5 & 0xFFFFFFFF
            self._word = word
            words.append(word)
        return np.array(words, dtype="<u4").tobytes()[:count]


def draws() -> Vectors:
    """Random bytes, and the slot that a device draws from them."""
    cases = [
        (1.0, FixedWindow.whole(slots), 1) for slots in (1, 2, 3, 50, 255, 256, 257, 10**12)
    ] + [
        (0.5, FixedWindow.whole(5), 1),
        (0.1, FixedWindow.whole(1000), 1),
        (1e-3, FixedWindow.whole(7), 1),
        (0.0, FixedWindow.whole(7), 1),
        (1.0, SlidingWindow(3), 12),
        (0.75, SlidingWindow(6), 1),
    ]
    found: Vectors = []
    for participation, window, first_open_slot in cases:
        for seed in range(1, 9):
            source = Xorshift(0x9E3779B9 * seed & 0xFFFFFFFF)
            with mock.patch("random._urandom", source.bytes):
                randomness = DeviceRandomness()
                coin, pick = randomness.coin(), randomness.pick(len(window))
            machine, _ = participant.step(
                participant.Participant(participation, window),
                participant.Draw(coin, pick, first_open_slot),
            )
            found.append(
                {
                    "participation": participation,
                    "slots": 10**12 if isinstance(window, SlidingWindow) else len(window),
                    "window": len(window) if isinstance(window, SlidingWindow) else None,
                    "first_open_slot": first_open_slot,
                    "seed": 0x9E3779B9 * seed & 0xFFFFFFFF,
                    "slot": machine.slot,
                }
            )
    return found


RANDOMIZERS: dict[str, Any] = {
    "narrow": (Gaussian(1.0, 1.0), Grid(0.25)),
    "narrow, odd fractions": (Gaussian(0.3, 1.7), Grid(0.01)),
    "a table of one entry for each size": (Gaussian(1.0, 1.0), Grid(1.0 / 300)),
    "wide": (Gaussian(1.0, 1.15), Grid(1e-3)),
    "very wide": (Gaussian(1.0, 1.15), Grid(1e-6)),
    "widest": (Gaussian(1.0, 2.2), Grid(2.0**-26)),
    "laplace": (Laplace(1.0, 1.0), Grid(0.1)),
    "laplace, two digits": (Laplace(1.0, 40.0), Grid(1e-6)),
    "laplace, three digits": (Laplace(1.0, 10.0), Grid(2.0**-23)),
}


def noise() -> Vectors:
    """Random bytes, and the noise that a device draws from them."""
    found: Vectors = []
    for name, (randomizer, grid) in RANDOMIZERS.items():
        distribution = grid.noise(randomizer)
        scripts = {"": b"", **_scripts(distribution)}
        for what, script in scripts.items():
            count = LONG if not script else len(script) // 4
            units = distribution.draw(count, Xorshift(2463534242, script))
            found.append(
                {
                    "name": f"{name}{what}",
                    "randomizer": _randomizer(randomizer, grid),
                    "largest_size": distribution.largest_size,
                    "seed": 2463534242,
                    "script": script.hex(),
                    "count": count,
                    "first": units[:24].tolist(),
                    "sha256": hashlib.sha256(units.astype("<i4").tobytes()).hexdigest(),
                }
            )
    return found


def _scripts(distribution: SymmetricNoise) -> dict[str, bytes]:
    """Return bytes that reach rare branches: ties with a threshold, and undecided wedges."""
    sizes = distribution.sizes
    if not isinstance(sizes, Staircase):
        first_words = sizes.first_digit.first_words  # type: ignore[attr-defined]
        return {", ties": first_words[:12].astype("<u4").tobytes()}
    cells = sizes.cells
    likely = [entry for entry in range(cells, 2 * cells) if sizes.table.thresholds[entry]][:6]
    words = [entry << 20 for entry in likely]  # their wedges are drawn
    low_bytes = 1 if sizes.offset_bits <= 8 else 2 if sizes.offset_bits <= 16 else 4
    middle = 1 << (sizes.offset_bits - 1)
    low = (middle << (8 * low_bytes - sizes.offset_bits)).to_bytes(low_bytes, "little")
    first = np.array([(2**32 - 1) // 2] * len(words), dtype="<u4").tobytes()
    wedges = np.array(words, dtype="<u4").tobytes() + low * len(words) + first
    ties = sizes.table.first_words[[0, 1, cells, 2 * cells]].astype("<u4").tobytes()
    return {", ties": ties, ", wedges": wedges[: 4 * len(words)], ", exact wedges": wedges}


def clipping() -> Vectors:
    """Updates, and the integers that they are clipped and rounded to."""
    found: Vectors = []
    stream = np.frombuffer(Xorshift(7).bytes(4 * LONG), dtype="<u4")
    updates: dict[str, Any] = {
        "within": [0.6, -0.8],
        "exact multiples": [0.3, -0.75, 0.9, 0.1, -0.1],
        "too long": [3.0, -4.0, 0.0, 12.0],
        "just above the clip": [0.42 * (1 + 4e-7), -0.56 * (1 + 4e-7)],
        "overflow": [1e308, -1e308, 1e300],
        "tiny": [5e-324, -1e-310],
        "not a number": [math.nan, 1.0],
        "infinite": [math.inf, 1.0],
        "zero": [0.0, -0.0],
        "long": None,
        "long, within": None,
    }
    designs = [
        (Gaussian(1.0, 1.0), Grid(0.1)),
        (Gaussian(1.0, 1.15), Grid(1e-6)),
        (Gaussian(0.7, 1.0), Grid(2.0**-30)),
        (Laplace(1.0, 4.0), Grid(1e-6)),
        (Laplace(0.3, 1.0), Grid(1e-3)),
    ]
    for name, update in updates.items():
        for randomizer, grid in designs:
            if update is None:
                scale = 1.0 if name == "long" else 2.0**-20
                values = (stream.astype(np.float64) - 2.0**31) / 2.0**31 * scale
            else:
                values = np.array(update, dtype=np.float64)
            order = randomizer.norm_order
            units = grid.clip(values, randomizer.clip, order=order)
            case: dict[str, Any] = {"name": name, "randomizer": _randomizer(randomizer, grid)}
            if update is None:
                case |= {"seed": 7, "count": LONG, "scale": scale}
                case["sha256"] = hashlib.sha256(units.astype("<i4").tobytes()).hexdigest()
            else:
                case |= {"update": [str(value) for value in update], "units": units.tolist()}
            found.append(case)
    return found


def encodings() -> Vectors:
    """Reports and models as bytes, in base64; null stands for bytes that are refused."""
    reports = ([1, -2], [0] * 7, [2**31 - 1, -(2**31) + 1, 5], list(range(-60, 60)))
    found: Vectors = [
        {"units": units, "report": _base64(report_to_bytes(np.array(units, dtype=np.int32)))}
        for units in reports
    ]
    shapes = {"weights": (2, 3), "bias": (), "a": (1,)}
    tensors = {
        name: np.linspace(-1.5, 2.0, math.prod(shape)).reshape(shape)
        for name, shape in shapes.items()
    }
    good = model_to_bytes(tensors)  # without metadata, whose order differs between processes
    lists = {name: np.ravel(tensor).tolist() for name, tensor in model_from_bytes(good)[0].items()}
    listed = {name: list(shape) for name, shape in shapes.items()}
    found.append({"model": _base64(good), "shapes": listed, "tensors": lists})
    other = model_to_bytes({**tensors, "more": np.zeros(1)}, {})
    for bad in (b"", good[:-1], good[:20], good + b"\0", other, b"\xff" * 64):
        found.append({"model": _base64(bad), "shapes": listed, "tensors": None})
    return found


CAMPAIGN = """\
schema = 1
name = "vector"
population_id = "clinic"
[budget]
epsilon = 8.0
delta = 1e-6
adjacency = "add-remove"
[protocol]
kind = "fixed"
slots = 4
participation = 0.5
capacity = 2
[randomizer]
kind = "laplace"
local_epsilon = 1.0
clip = 1.0
grid = 1e-6
[task]
data = "patients"
model = "logistic"
optimizer = { kind = "sgd", rate = 0.5 }
[schedule]
start = 2030-01-01T00:00:00.250000Z
slot_s = 10.0
choose_s = 4.0
"""
GAUSSIAN = 'kind = "gaussian"\nnoise_at = "{}"\nnoise_multiplier = 4.0'
LAPLACE = 'kind = "laplace"\nlocal_epsilon = 1.0'
VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "laplace": (),
    "gaussian at the client": ((LAPLACE, GAUSSIAN.format("client")),),
    "gaussian at the server": ((LAPLACE, GAUSSIAN.format("server")),),
    "correlated noise": (
        (LAPLACE, GAUSSIAN.format("server") + "\nnoise = { bits = 4, numerators = [12, 6, 5] }"),
    ),
    "averaged": (
        ('kind = "fixed"', 'kind = "averaged"'),
        ("participation = 0.5", "participation = 1.0"),
        ("capacity = 2\n", ""),
        ('"add-remove"', '"replace-one"\npopulation = [4, 1000]'),
    ),
    "sliding": (('kind = "fixed"', 'kind = "sliding"\nwindow = 3'),),
    "several runs": (("slots = 4", "slots = 4\nrepeats = 3"),),
    "a table": (
        (
            'data = "patients"',
            'data = { file = "a.csv", client_column = "c", label_column = "y",'
            ' features = ["z", "ä"], ranges = { z = [-1.0, 2.5], "ä" = [0.0, 1.0] } }',
        ),
    ),
    "odd numbers": (("slot_s = 10.0", "slot_s = 123456789.125"), ("rate = 0.5", "rate = 1e22")),
    "an odd name": (('name = "vector"', 'name = "Größe \\"\\\\ \\U0001F600"'),),
    "randomized response": (
        (LAPLACE, 'kind = "randomized-response"\nlocal_epsilon = 1.0\ncategories = 3'),
        ("clip = 1.0\ngrid = 1e-6\n", ""),
    ),
    "privunit": (
        (LAPLACE, 'kind = "privunit"\nlocal_epsilon = 1.0'),
        ("grid = 1e-6\n", ""),
    ),
    "no grid": (("grid = 1e-6\n", ""),),
    "no schedule": ((CAMPAIGN[CAMPAIGN.index("[schedule]") :], ""),),
    "an optimizer for simulations": (('kind = "sgd"', 'kind = "optax:adam"'),),
}


def _texts() -> Iterator[tuple[str, str]]:
    """Yield names and sealed texts, good ones and bad ones."""
    for name, changes in VARIANTS.items():
        text = CAMPAIGN
        for before, after in changes:
            assert before in text, (name, before)
            text = text.replace(before, after)
        yield name, parse_campaign(text).campaign.canonical()
    good = parse_campaign(CAMPAIGN).campaign.canonical()
    for name, before, after in (
        ("an unknown schema", '"schema":1', '"schema":2'),
        ("no schema", ',"schema":1', ""),
        ("an unknown key", '"slots":4', '"slots":4,"speed":2'),
        ("a key that JavaScript knows", '"slots":4', '"constructor":{},"slots":4'),
        ("a key that JavaScript treats specially", '{"budget"', '{"__proto__":{},"budget"'),
        ("an unknown section", '"task":', '"tariff":{},"task":'),
        ("a space", '"slots":4', '"slots": 4'),
        ("a key twice", '"slots":4', '"slots":4,"slots":4'),
        ("keys out of order", '"clip":1.0,"grid":1e-06', '"grid":1e-06,"clip":1.0'),
        ("a float spelled otherwise", "1e-06", "0.000001"),
        ("a float with a zero more", '"clip":1.0', '"clip":1.00'),
        ("an integer for a float", '"clip":1.0', '"clip":1'),
        ("a float for an integer", '"slots":4', '"slots":4.0'),
        ("a negative clip", '"clip":1.0', '"clip":-1.0'),
        ("an escape", '"vector"', '"v\\u0065ctor"'),
        ("a text for a number", '"slots":4', '"slots":"4"'),
        ("no slots", '"slots":4', '"slots":0'),
        ("a participation above 1", '"participation":0.5', '"participation":1.5'),
        ("a choice after the slot", '"choose_s":4.0', '"choose_s":40.0'),
        ("a grid that is too fine", '"grid":1e-06', '"grid":1e-12'),
        ("a grid that is too coarse", '"grid":1e-06', '"grid":2.0'),
        ("text after the end", '"start":"2030-01-01T00:00:00.250000Z"}', '"start":"2030"}'),
        ("infinity", '"clip":1.0', '"clip":Infinity'),
    ):
        assert before in good, name
        yield name, good.replace(before, after)
    yield "no JSON", good[:-1]
    yield "more than an object", good + "{}"
    yield "a list", f"[{good}]"


def campaigns() -> Vectors:
    """Sealed texts, and what a device uses of them; null if it refuses the campaign."""
    found: Vectors = []
    for name, text in _texts():
        try:
            campaign = campaign_from_canonical(text)
        except CheckinsError:
            campaign = None
        uses = None
        if campaign is not None and not campaign.missing and campaign.randomizer.grid is not None:
            design, times = campaign.design, RunSchedule.of(campaign, campaign.repeats)
            uses = {
                "population_key": campaign.population_key,
                "budget": [campaign.budget.epsilon, campaign.budget.delta],
                "slots": design.slots,
                "window": design.window,
                "participation": design.participation,
                "randomizer": _randomizer(campaign.mechanism(14), Grid(campaign.randomizer.grid)),
                "begins": [times.begins(slot) for slot in (1, 2, design.slots)],
                "first_open_slots": [
                    times.first_open_slot(times.begins(1) + s) for s in (-9.0, 3.9, 4.0, 25.5, 1e9)
                ],
            }
        found.append({"name": name, "text": text, "uses": uses})
    return found


def views() -> Vectors:
    """Views of a run: ``accepted``, ``refused`` (the campaign), or ``malformed`` (no view)."""
    campaign = parse_campaign(CAMPAIGN.replace("slots = 4", "slots = 4\nrepeats = 2")).campaign
    head = hashlib.sha256(b"head").hexdigest()
    good: dict[str, Any] = {
        "id": wire.run_id(campaign.seal, 2),
        "seal": campaign.seal,
        "campaign": campaign.canonical(),
        "run": 2,
        "status": "running",
        "schedule": {
            "start": wire.format_time(RunSchedule.of(campaign, 2).begins(1)),
            "slot_s": 10.0,
            "choose_s": 4.0,
            "slots": 4,
        },
        "dimension": 14,
        "tensors": [{"name": "weights", "shape": [13]}, {"name": "bias", "shape": []}],
        "ledger": {"entries": 3, "head": head},
        "epoch": 1,
        "slots_closed": 2,
        "next": None,
        "enrolment": "open",
        "server_time": "2030-01-01T00:00:00.500000Z",
    }
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "another seal": {"seal": seal_of("other")},
        "another campaign under the seal": {"campaign": campaign.canonical() + " "},
        "another id": {"id": wire.run_id(seal_of("other"), 2)},
        "another run": {"run": 1},
        "a run that is not": {"run": 3, "id": wire.run_id(campaign.seal, 3)},
        "longer slots": {"schedule": {**good["schedule"], "slot_s": 11.0}},
        "more slots": {"schedule": {**good["schedule"], "slots": 5}},
        "another start": {"schedule": {**good["schedule"], "start": "2030-01-01T00:00:01Z"}},
        "another dimension": {"dimension": 15},
        "too many numbers": {
            "tensors": [{"name": "weights", "shape": [2**24 + 1]}],
            "dimension": 2**24 + 1,
        },
        "an empty tensor": {
            "tensors": [*good["tensors"], {"name": "more", "shape": [0]}],
        },
        "no head": {"ledger": {"entries": 3, "head": "x"}},
        "no ledger": {"ledger": None},
        "no time": {"server_time": "now"},
        "a time without offset": {"server_time": "2030-01-01T00:00:00.500000"},
        "no text": {"campaign": 3},
    }
    found: Vectors = []
    for name, change in changes.items():
        body = json.dumps(good | change)
        found.append({"name": name, "body": body, "result": _view_result(body.encode())})
    for body in ("", "[]", "null", "{}", "<html>"):
        found.append({"name": f"body {body!r}", "body": body, "result": "malformed"})
        assert _view_result(body.encode()) == "malformed"
    return found


def _view_result(body: bytes) -> str:
    try:
        parse_view(body)
    except CheckinsError as error:
        return {"CampaignRefused": "refused", "MalformedView": "malformed"}[type(error).__name__]
    return "accepted"


def odometers() -> Vectors:
    """Charges, and their total. ``mixed`` totals use exp, whose last digits may differ."""
    add, replace = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
    cases = [
        [],
        [(add, 1.0, 1e-6)],
        [(add, 0.1, 1e-6), (add, 0.2, 1e-6), (add, 0.3, 1e-7)],
        [(add, 1e16, 1e-6), (add, 1.0, 1e-300), (add, 1e-16, 1e-6)],
        [(replace, 0.1, 0.6), (replace, 0.7, 0.7)],
        [(add, math.inf, 1e-6), (add, 1.0, 1e-6)],
        [(add, 1.0, 1e-6), (replace, 2.0, 1e-6)],
        [(add, 800.0, 1e-6), (replace, 2.0, 1e-6)],
    ]
    found: Vectors = []
    for case in cases:
        charges = tuple(
            Charge("population a", adjacency, epsilon, delta, 1, "0" * 64, (f"{i:012}-1",))
            for i, (adjacency, epsilon, delta) in enumerate(case)
        )
        odometer = Odometer(charges)
        stored = json.loads(odometer.to_bytes())
        found.append(
            {
                "stored": stored,
                "total": odometer.total().as_json(),
                "mixed": len({charge.adjacency for charge in charges}) > 1,
            }
        )
    charge = json.loads(Odometer((Charge("a", add, 1.0, 1e-6, 1, "0" * 64),)).to_bytes())[
        "charges"
    ][0]
    damaged = [
        {},
        *({**charge, **wrong} for wrong in ({"epsilon": "1"}, {"epsilon": -1.0}, {"delta": None})),
    ]
    for bad in (
        {"schema": 2, "charges": []},
        {"charges": []},
        *({"schema": 1, "charges": [each]} for each in damaged),
    ):
        found.append({"stored": bad, "total": None, "mixed": False})
    return found


def states() -> Vectors:
    """Stored states of a device, and whether it continues from them."""
    run = "0123456789ab-1"
    drawn = SavedState(run, key="k", token="t", phase=participant.Phase.DRAWN, slot=3)
    good = [
        SavedState(run, seal="sha256:" + "0" * 64, key="k", epoch=1, entries=2, head="0" * 64),
        drawn,
        dataclasses.replace(drawn, slot=None),
        SavedState(run).ended_with("REPORTED"),
        SavedState(run).ended_with("WITHDRAWN"),
    ]
    texts = [state.to_bytes().decode() for state in good]
    texts += [
        texts[0].replace('"schema": 1', '"schema": 2'),
        texts[0].replace('"schema": 1, ', ""),
        texts[1].replace("DRAWN", "SLEEPING"),
        texts[3].replace("REPORTED", "HAPPY"),
        texts[0][:-3],
        "",
        "null",
    ]
    found: Vectors = []
    for text in texts:
        try:
            SavedState.from_bytes(text.encode())
        except CheckinsError:
            accepted = False
        else:
            accepted = True
        found.append({"run": run, "text": text, "accepted": accepted})
    return found


def training() -> Vectors:
    """Rows, models and updates of linear models, which agree to about 1e-12."""
    found: Vectors = []
    for model, shapes, steps in (
        ("logistic", {"weights": (13,), "bias": ()}, 1),
        ("logistic", {"weights": (13,), "bias": ()}, 5),
        ("softmax", {"weights": (784, 10), "bias": (10,)}, 1),
        ("softmax", {"weights": (784, 10), "bias": (10,)}, 3),
    ):
        data = "patients" if model == "logistic" else "fashion-mnist"
        text = CAMPAIGN.replace('"logistic"', f'"{model}"').replace('"patients"', f'"{data}"')
        if steps > 1:
            text = text.replace("[task]", f"[task]\nlocal_steps = {steps}\nlocal_rate = 0.25")
        campaign = parse_campaign(text).campaign
        assert campaign.task is not None
        width = shapes["weights"][0]
        words = np.frombuffer(Xorshift(11).bytes(8 * width), dtype="<u4")
        rows = words.reshape(2, width).astype(np.float64) / 2.0**31 - 1.0
        labels = [1, 0]
        size = width * (1 if model == "logistic" else 10)
        weights = np.frombuffer(Xorshift(13).bytes(4 * size), dtype="<u4") / 2.0**31 - 1.0
        tensors = {
            "weights": weights.reshape(shapes["weights"]),
            "bias": np.full(shapes["bias"], 0.125),
        }
        update = RowsTrainer(campaign.task, rows, labels).update(tensors)
        some = np.ravel(update["weights"])[:: max(1, size // 40)].tolist()
        listed = {name: list(shape) for name, shape in shapes.items()}
        found.append(
            {
                "text": campaign.canonical(),
                "shapes": listed,
                "labels": labels,
                "weights": some,
                "every": max(1, size // 40),
                "bias": np.ravel(update["bias"]).tolist(),
            }
        )
    return found


def _randomizer(randomizer: Any, grid: Grid) -> dict[str, Any]:
    if isinstance(randomizer, Gaussian):
        values = {"kind": "gaussian", "noiseMultiplier": randomizer.noise_multiplier}
    else:
        values = {"kind": "laplace", "localEpsilon": randomizer.local_epsilon}
    return {**values, "clip": randomizer.clip, "grid": grid.step}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


TOPICS = (draws, noise, clipping, encodings, campaigns, views, odometers, states, training)


def texts() -> dict[str, str]:
    """Return the content of each file by its name: one vector in each line."""
    return {f"{topic.__name__}.json": _lines(topic()) for topic in TOPICS}


def _lines(found: Vectors) -> str:
    lines = (json.dumps(vector, ensure_ascii=True, allow_nan=False) for vector in found)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def stale() -> list[str]:
    """Return the names of the files that are not what the Python code gives."""
    files = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    wanted = texts()
    names = sorted(files.keys() | wanted.keys())
    return [name for name in names if files.get(name) != wanted.get(name)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        names = stale()
        for name in names:
            print(f"tests/vectors/{name} is out of date: run python tools/vectors.py")
        return 1 if names else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
