"""Simulate a campaign on a virtual clock. A simulation is not private: its randomness is seeded.

A dummy is a report without data, which the server draws in place of a missing report. These modules
hold the paper's algorithm, in reading order:

1. ``population``            the check-ins of each slot (the client's side of Algorithm 1).
2. ``engine.updates``        the sum of the clipped updates of a slot's clients.
3. ``engine.mechanism``      the noise that is added to the sum, and the divisor of the sum.
4. ``engine.loop``           one slot: sum, noise, divisor, model update; a ``scan`` over slots.
5. ``engine.training``       all runs of a campaign from one seed, in chunks of slots.
6. ``engine.outcome``        ``simulate(campaign)``: train, evaluate, and save checkpoints.

In pseudocode, with m slots, capacity K, noise multiplier σ and clip norm C:

    every client, with probability p₀, checks in to one slot drawn uniformly from 1..m
    for slot in 1..m:
        chosen = at most K of the clients that checked in to the slot, drawn uniformly
        total  = sum(clip(update(model, client), C) for client in chosen)
        total += Gaussian noise of deviation √K σ C     # the noise of K reports, real or dummy
        model  = optimizer(model, total / K)

The other modules: ``baselines`` calibrates other mechanisms to the same epsilon. ``study`` runs
campaigns and baselines from several seeds, as jobs in ``workers``. ``result`` holds the results,
and ``report`` displays them. ``excess_risk`` and ``utility_sweep`` test the paper's utility
theorems.
"""
