"""A checkpoint: what was written comes back bit for bit, or the file says that it is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from checkins.campaign import Optimizer
from checkins.errors import InvalidValue
from checkins.simulation.engine.evaluation import CurvePoint
from checkins.simulation.engine.loop import server_of
from checkins.simulation.engine.outcome import Checkpoint, Curves
from checkins.simulation.engine.training import Position

CURVE = (CurvePoint(0, {"loss": 0.1}), CurvePoint(3, {"loss": 1e-300, "auc": 2 / 3}))
CURVES = Curves(CURVE, CURVE[1:])


def position(kind: str = "optax:adam", *, fill: float = np.pi) -> Position:
    model = jnp.linspace(-1.0, 1.0, 5, dtype=jnp.float32)
    state = server_of(Optimizer(0.1, kind=kind)).start(model)
    return Position(2, 3, jax.tree.map(lambda leaf: leaf + jnp.asarray(fill, leaf.dtype), state))


def leaves(found: Position) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(found.state)]


@pytest.mark.parametrize("kind", ["sgd", "optax:adam"])
def test_a_checkpoint_is_read_back_bit_for_bit(tmp_path: Path, kind: str) -> None:
    checkpoint = Checkpoint(tmp_path / "deeper" / "a.checkpoint.npz")
    written = position(kind)
    checkpoint.write(written, CURVES, 1.25)
    saved = checkpoint.read(position(kind, fill=0.0))
    assert saved is not None
    assert leaves(saved.position) == leaves(written)
    assert (saved.position.run, saved.position.slots) == (2, 3)
    assert (saved.curves, saved.seconds) == (CURVES, 1.25)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(saved.position.state)]
    assert dtypes == [leaf.dtype for leaf in jax.tree.leaves(written.state)]


def test_without_a_file_there_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "a.npz")
    assert checkpoint.read(position()) is None
    checkpoint.write(position(), CURVES, 0.0)
    checkpoint.remove()
    checkpoint.remove()
    assert checkpoint.read(position()) is None


def test_a_crash_while_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = Checkpoint(tmp_path / "a.checkpoint.npz")
    checkpoint.write(position(), CURVES, 1.0)

    def half(file: Any, **arrays: Any) -> None:
        file.write(b"PK half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.write(position(fill=9.0), CURVES, 2.0)
    monkeypatch.undo()
    saved = checkpoint.read(position(fill=0.0))
    assert saved is not None
    assert (leaves(saved.position), saved.seconds) == (leaves(position()), 1.0)
    checkpoint.write(position(fill=9.0), CURVES, 2.0)
    assert [path.name for path in tmp_path.iterdir()] == ["a.checkpoint.npz"]


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "leaves"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    checkpoint = Checkpoint(tmp_path / "a.checkpoint.npz")
    checkpoint.write(position("sgd"), CURVES, 1.0)
    whole = checkpoint.path.read_bytes()
    if damage != "leaves":
        bad = {"cut": whole[: len(whole) // 2], "empty": b"", "text": b"what is this?"}
        checkpoint.path.write_bytes(bad[damage])
    with pytest.raises(InvalidValue, match=r"a\.checkpoint\.npz.*is damaged: remove it"):
        checkpoint.read(position("optax:adam"))
