"""The compiled loop: a chunk of slots is one ``lax.scan``. Its noise is drawn before it starts.

In each slot, the clipped updates of its clients are summed, noise is added, the sum is divided by a
public number, and the server's optimizer makes a step. With PrivUnit, reports are drawn one by one.
Otherwise noise is drawn once for the sum (``checkins.simulation.engine.mechanism``).

The clients of a slot are an array of fixed width. The number −1 marks a place without a client. A
dummy is a report without data, which the server draws in place of a missing report.

Noise that is correlated across slots is computed for a block of slots at a time. With the
coefficients c_0, ..., c_{b−1} of a noise strategy, the noise in the sum of slot t is

    w_t = (Z_t − c_1 w_{t−1} − ... − c_{b−1} w_{t−b+1}) / c_0,

where the Z_t are independent Gaussian vectors, and w_s = 0 before the first release. In matrices,
this is w = C⁻¹ Z, where C is lower triangular with the coefficients on its diagonals. The noise
does not depend on the clients, so the noise of a block of slots is computed before its first slot.
It is a linear function of the vectors Z of the block and of the vectors w before it. This takes one
matrix product for each block, and less memory traffic than b vector operations in each slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, toeplitz

from checkins.campaign import Optimizer
from checkins.errors import InvalidValue, first_line
from checkins.optional_imports import import_optional
from checkins.randomizers import Randomizer
from checkins.randomizers.compiled import compiled_dummies, compiled_reports
from checkins.simulation.engine.updates import Updates
from checkins.simulation.population import digit_sizes, feistel

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


SKIPPED_SLOT, IGNORED_ROW = 0.0, -1.0
"""Special values of a slot's divisor. In a skipped slot, the server makes no step. An ignored row
is not counted as a slot: it is a warm-up slot of a sliding window, or fills up a chunk."""

UNROLLED_SLOTS, UNROLLED_SLOTS_ON_CPU = 8, 2
"""Slots per iteration of the scan, on an accelerator and on a CPU. An accelerator needs more slots,
because starting the computation of a slot takes longer than the computation."""


class State(NamedTuple):
    """The state between two slots."""

    model: Array
    accumulator: Array
    """Sum of the gradients since the last step; empty if the server makes a step in every slot."""
    optimizer: Any
    slots: Array
    """Number of finished slots of this run."""
    average: Array
    """Average of the models so far; empty if the task declares none."""
    past_noise: Array
    """The noise of the last slots, the oldest first, if it affects the next slots; else empty."""


class SlotChunk(NamedTuple):
    """The inputs of consecutive slots, one row per slot."""

    clients: Array
    """Numbers of the clients whose updates are used; −1 for a place without a client."""
    noise: Array
    """The noise of the sum, or a random key if each report is drawn separately."""
    noise_scales: Array
    """Factors by which the noise is multiplied."""
    divisors: Array
    """The number that the sum of a slot is divided by, or ``SKIPPED_SLOT`` or ``IGNORED_ROW``."""
    average_weights: Array | None = None
    """The weight of each slot's model in the average of all models up to this slot; None if the
    task declares no average."""


SlotSum = Callable[[Any, Array, SlotChunk], Array]
"""A function from (table of the data, packed model, one slot) to the noisy sum of the slot."""


class StepDirection(NamedTuple):
    """An optimizer with step size 1, in the form of an optax transformation (two functions)."""

    init: Callable[[Array], Any]
    update: Callable[[Array, Any, Array], tuple[Array, Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """The server's model update: ModelUpdate of Algorithm 1, with any optimizer.

    Step i has size ``rate`` / i^``decay`` and uses the mean of ``minibatch`` slots. Then the model
    is projected onto the ball of this diameter; None means no projection.
    """

    optimizer: StepDirection
    rate: float
    decay: float = 0.0
    minibatch: int = 1
    diameter: float | None = None

    def start(self, model: Array) -> State:
        accumulator = jnp.zeros_like(model) if self.minibatch > 1 else jnp.zeros(0, model.dtype)
        slots, absent = jnp.zeros((), jnp.int32), jnp.zeros(0, model.dtype)
        optimizer = self.optimizer.init(model)
        return State(model, accumulator, optimizer, slots, average=absent, past_noise=absent + 0)

    def next_run(self, state: State) -> State:
        """Return the state at the start of the next run.

        The model and the state of the optimizer stay. Slots and accumulator become zero.
        """
        zero = jnp.zeros((), jnp.int32)
        return state._replace(accumulator=jnp.zeros_like(state.accumulator), slots=zero)

    def apply_slot(self, state: State, slot_sum: Array, divisor: Array) -> State:
        """Return the state after a slot with this noisy sum and this divisor."""
        is_skipped = divisor <= SKIPPED_SLOT
        slots = state.slots + (divisor > IGNORED_ROW).astype(jnp.int32)
        mean = slot_sum / jnp.maximum(divisor, 1.0)
        if self.minibatch == 1:
            is_due, gradient, accumulator = ~is_skipped, mean, state.accumulator
        else:
            gradient = jnp.where(is_skipped, state.accumulator, state.accumulator + mean)
            is_due = (slots % self.minibatch == 0) & ~is_skipped
            accumulator = jnp.where(is_due, 0.0, gradient)
            gradient = gradient / self.minibatch
        step = slots // self.minibatch
        stepped = self._step(state.model, gradient, state.optimizer, step)
        unchanged = (state.model, state.optimizer)
        model, optimizer = jax.tree.map(
            lambda new, old: jnp.where(is_due, new, old), stepped, unchanged
        )
        return state._replace(
            model=model, accumulator=accumulator, optimizer=optimizer, slots=slots
        )

    def _step(
        self, model: Array, gradient: Array, optimizer: Any, step: Array
    ) -> tuple[Array, Any]:
        direction, next_optimizer = self.optimizer.update(gradient, optimizer, model)
        rate: Any = self.rate
        if self.decay > 0.0:
            rate = self.rate / jnp.maximum(step, 1).astype(model.dtype) ** self.decay
        model = model + rate * direction
        if self.diameter is None:
            return model, next_optimizer
        norm = jnp.sqrt(jnp.sum(model * model))
        shrink = jnp.minimum(1.0, 0.5 * self.diameter / jnp.maximum(norm, 1e-30))
        return model * shrink, next_optimizer


def noisy_sum(updates: Updates) -> SlotSum:
    """Return a function that adds noise to the sum of the clipped updates of a slot."""

    def slot_sum(table: Any, model: Array, slot: SlotChunk) -> Array:
        noise = slot.noise.reshape(model.shape)
        return updates.function(table, model, slot.clients) + slot.noise_scales * noise

    return slot_sum


def sum_of_reports(updates: Updates, randomizer: Randomizer, dimension: int) -> SlotSum:
    """Return a function that draws the reports of a slot one by one and returns their sum.

    Dummies fill the places without a client. ``updates`` returns each client's unclipped update.
    """
    draw_reports = compiled_reports(randomizer, dimension)

    def slot_sum(table: Any, model: Array, slot: SlotChunk) -> Array:
        report_key, dummy_key = jax.random.split(jax.random.wrap_key_data(slot.noise))
        width = len(slot.clients)
        draw_dummies = compiled_dummies(randomizer, dimension, count=width, dtype=model.dtype)
        reports = draw_reports(report_key, updates.function(table, model, slot.clients)).values
        dummies = slot.noise_scales * draw_dummies(dummy_key).values
        return jnp.sum(jnp.where((slot.clients >= 0)[:, None], reports, dummies), axis=0)

    return slot_sum


ChunkFunction = Callable[[State, SlotChunk, Any], tuple[State, Array]]


def compile_chunk(
    slot_sum: SlotSum, server: Server, coefficients: Coefficients | None = None
) -> ChunkFunction:
    """Compile a function from (state, inputs, table of the data) to (state after a chunk, token).

    The state before is donated to JAX, so it must not be used again. The token is an array that is
    ready when the chunk is finished, so a caller can wait for it. If ``coefficients`` are given,
    noise is correlated across slots (``checkins.simulation.engine.loop``). Then the
    noise scales of all slots must be equal.
    """

    def chunk(state: State, inputs: SlotChunk, table: Any) -> tuple[State, Array]:
        if coefficients is None:
            state = run_slots(state, inputs, table)
        else:
            state = run_correlated_slots(coefficients, state, inputs, table)
        return state, state.slots + 0

    def run_correlated_slots(
        coefficients: Coefficients, state: State, inputs: SlotChunk, table: Any
    ) -> State:
        """Run the slots in blocks, each of which starts with the noise of its slots."""

        def block(
            number: Any, carry: tuple[Array, State], length: int = BLOCK_SLOTS
        ) -> tuple[Array, State]:
            window, state = carry
            own: SlotChunk = jax.tree.map(
                lambda rows: jax.lax.dynamic_slice_in_dim(rows, number * BLOCK_SLOTS, length),
                inputs,
            )
            padded = jnp.pad(own.noise, ((0, BLOCK_SLOTS - length), (0, 0)))
            window, noise = correlate(coefficients, window, number, padded)
            return window, run_slots(state, own._replace(noise=noise[:length]), table)

        slots, no_past = len(inputs.noise), state.past_noise[:0]
        blocks, rest = divmod(slots, BLOCK_SLOTS)
        carry = (open_window(state.past_noise), state._replace(past_noise=no_past))
        if blocks:
            carry = jax.lax.fori_loop(0, blocks, block, carry)
        if rest:
            carry = block(blocks, carry, rest)
        window, state = carry
        return state._replace(past_noise=close_window(window, slots))

    def run_slots(state: State, inputs: SlotChunk, table: Any) -> State:
        def slot(state: State, inputs: SlotChunk) -> tuple[State, None]:
            total = slot_sum(table, state.model, inputs)
            state = server.apply_slot(state, total, inputs.divisors)
            if inputs.average_weights is not None:
                change = inputs.average_weights * (state.model - state.average)
                state = state._replace(average=state.average + change)
            return state, None

        unroll = UNROLLED_SLOTS_ON_CPU if on_cpu() else UNROLLED_SLOTS
        end_state: State = jax.lax.scan(slot, state, inputs, unroll=unroll)[0]
        return end_state

    return jax.jit(chunk, donate_argnums=0)


def on_cpu() -> bool:
    """Return True if the loop runs on a CPU, False if on an accelerator."""
    return bool(jax.default_backend() == "cpu")


def compile_slot_clients(
    clients: int, clients_in_data: int, width: int
) -> Callable[[Array, Array, Array], Array]:
    """Compile a function from (keys, first positions, numbers of reports) to each slot's clients.

    A row has ``width`` places; −1 marks a place without a client. Clients are in the order of
    ``Permutation``. Client j is returned as j mod ``clients_in_data``.
    """
    high, low = digit_sizes(clients)

    def clients_of(keys: Array, first_position: Array, reports: Array) -> Array:
        client_count = jnp.uint32(clients)  # a Python integer would become signed and may not fit
        positions = jnp.arange(width, dtype=jnp.uint32)
        has_client = positions[None, :] < reports.astype(jnp.uint32)[:, None]

        def permute(state: tuple[Array, Array]) -> tuple[Array, Array]:
            numbers, pending = state
            numbers = jnp.where(pending, feistel(numbers, keys, high, low), numbers)
            return numbers, numbers >= client_count

        # Places without a client get position 0, because theirs may be too large for ``feistel``.
        numbers = jnp.where(
            has_client, first_position.astype(jnp.uint32)[:, None] + positions[None, :], 0
        )
        state = (numbers, has_client)
        numbers, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), permute, state)
        return jnp.where(has_client, (numbers % jnp.uint32(clients_in_data)).astype(jnp.int32), -1)

    return jax.jit(clients_of)


@lru_cache(maxsize=8)
def server_of(optimizer: Optimizer) -> Server:
    """Return the server for a campaign's optimizer. Equal optimizers share one object."""
    step_sizes = (optimizer.rate, optimizer.schedule.decay, optimizer.minibatch, optimizer.diameter)
    return Server(_step_direction(optimizer), *step_sizes)


def _step_direction(optimizer: Optimizer) -> StepDirection:
    if optimizer.optax is not None:
        return _from_optax(optimizer)
    if optimizer.momentum is None:
        return StepDirection(lambda model: (), lambda gradient, state, model: (-gradient, state))
    momentum, nesterov = optimizer.momentum, optimizer.nesterov

    def update(gradient: Array, velocity: Any, model: Array) -> tuple[Array, Any]:
        velocity = gradient + momentum * velocity
        return -(gradient + momentum * velocity if nesterov else velocity), velocity

    return StepDirection(jnp.zeros_like, update)


def _from_optax(config: Optimizer) -> StepDirection:
    """Return an optax optimizer with rate 1. ``Server`` multiplies its steps by the rate."""
    optax = import_optional("optax", value=config.kind, setting="optimizer")
    factory = getattr(optax, config.optax or "", None)
    if not callable(factory):
        raise InvalidValue("optimizer", config.kind, "optax has no function of this name")
    try:
        optimizer = factory(learning_rate=1.0, **dict(config.arguments))
        change, _ = jax.eval_shape(
            lambda model: optimizer.update(model, optimizer.init(model), model), jnp.zeros(2)
        )
    except Exception as error:
        why = f"cannot be used as an optimizer: {first_line(error)}"
        raise InvalidValue("optimizer", config.kind, why) from error
    if getattr(change, "shape", None) != (2,):
        raise InvalidValue("optimizer", config.kind, "is not an optimizer of optax")
    return StepDirection(optimizer.init, optimizer.update)
