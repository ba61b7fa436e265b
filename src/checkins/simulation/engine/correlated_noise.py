"""Noise that is correlated across slots, computed for a block of slots at a time.

With the coefficients c_0, ..., c_{b−1} of a noise strategy, the noise in the sum of slot t is

    w_t = (Z_t − c_1 w_{t−1} − ... − c_{b−1} w_{t−b+1}) / c_0,

where the Z_t are independent Gaussian vectors, and w_s = 0 before the first release. In matrices,
this is w = C⁻¹ Z, where C is lower triangular with the coefficients on its diagonals. The noise
does not depend on the clients, so the noise of a block of slots is computed before its first slot.
It is a linear function of the vectors Z of the block and of the vectors w before it. This takes one
matrix product for each block, and less memory traffic than b vector operations in each slot.
"""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, toeplitz

Coefficients = tuple[float, ...]

BLOCK_SLOTS = 16
"""Number of slots of a block. More slots need more operations for each slot. With fewer slots, the
matrix product is slower."""


def past_slots(coefficients: Coefficients) -> int:
    """Return the number of vectors w that are kept: at least b − 1, and a multiple of a block."""
    return -(-(len(coefficients) - 1) // BLOCK_SLOTS) * BLOCK_SLOTS


def open_window(past: Array) -> Array:
    """Return a window: room for the block with number 0, and then ``past``, the oldest first.

    A window is a ring of blocks. Block i is at place i mod (number of places), where it replaces
    the oldest block.
    """
    return jnp.concatenate([jnp.zeros((BLOCK_SLOTS, past.shape[1]), past.dtype), past])


def correlate(
    coefficients: Coefficients, window: Array, number: Array | int, noise: Array
) -> tuple[Array, Array]:
    """Return the window after block ``number``, and the vectors w of the block.

    ``noise`` has the vectors Z of the slots of the block.
    """
    by_place = jnp.asarray(_window_matrices(coefficients), noise.dtype)
    place = number % len(by_place)
    row = place * BLOCK_SLOTS
    window = jax.lax.dynamic_update_slice_in_dim(window, noise, row, axis=0)
    correlated = jnp.matmul(by_place[place], window, precision=jax.lax.Precision.HIGHEST)
    return jax.lax.dynamic_update_slice_in_dim(window, correlated, row, axis=0), correlated


def close_window(window: Array, slots: int) -> Array:
    """Return the past vectors w, the oldest first, of a window after ``slots`` slots.

    The last block may have fewer slots than the others. The vectors of its missing slots are the
    first ones after the roll, so they are left out.
    """
    return jnp.roll(window, -(slots % len(window)), axis=0)[BLOCK_SLOTS:]


def block_matrices(coefficients: Coefficients) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the matrices A and B with w = A Z + B w_past for one block.

    >>> of_noise, of_past = block_matrices((1.0, 0.5))
    >>> of_noise[:2, :2].tolist(), of_past[:2, -1].tolist()
    ([[1.0, 0.0], [-0.5, 1.0]], [-0.5, 0.25])
    """
    past = past_slots(coefficients)
    column = np.zeros(past + BLOCK_SLOTS)
    column[: len(coefficients)] = coefficients
    rows = toeplitz(column, np.zeros_like(column))[past:]  # the rows of C for the block
    of_noise = solve_triangular(rows[:, past:], np.eye(BLOCK_SLOTS), lower=True)
    return of_noise, -of_noise @ rows[:, :past]


@lru_cache(maxsize=4)
def _window_matrices(coefficients: Coefficients) -> NDArray[np.float64]:
    """Return, for each place of a block in the window, the matrix with w = matrix × window."""
    of_noise, of_past = block_matrices(coefficients)
    at_first_place = np.hstack([of_noise, of_past])
    places = at_first_place.shape[1] // BLOCK_SLOTS
    return np.stack(
        [np.roll(at_first_place, place * BLOCK_SLOTS, axis=1) for place in range(places)]
    )
