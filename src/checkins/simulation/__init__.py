"""Simulate a campaign on a virtual clock, with seeded randomness: nothing simulated is private.

Where to read the paper's algorithm, in order:

1. ``population``            who checks in to which slot: Algorithm 1, the client's side.
2. ``engine.updates``        the sum of the clipped updates of a slot's clients.
3. ``engine.mechanism``      the noise of that sum, and the divisor.
4. ``engine.loop``           one slot: sum, noise, divisor, ModelUpdate; many slots in one ``scan``.
5. ``engine.training``       runs one after another, in chunks of slots, from one seed.
6. ``engine.outcome``        ``simulate(campaign)``: train, evaluate, and save checkpoints.

In pseudocode, with capacity K, noise multiplier σ and clip C:

    every client, with probability p₀, checks in to one slot drawn uniformly from 1..m
    for slot in 1..m:
        chosen = at most K of the clients that checked in to the slot, drawn uniformly
        total  = sum(clip(update(model, client), C) for client in chosen)
        total += Gaussian noise of deviation √K σ C     # K reports, dummies included
        model  = optimizer(model, total / K)

Around it: ``baselines`` are other mechanisms at the same epsilon; ``study`` runs campaigns and
baselines from several seeds, as jobs in ``workers``; ``result`` holds what came out, and
``report`` shows it. ``excess_risk`` and ``utility_sweep`` measure the paper's utility theorems.
"""
