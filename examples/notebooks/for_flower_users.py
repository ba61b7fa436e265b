import marimo

app = marimo.App()


@app.cell
def _():
    import dp_accounting
    import marimo as mo

    from checkins.accounting import Adjacency, Design, GaussianNoise, NoiseAt, Protocol, certify
    from checkins.formatting import down, up

    return (
        Adjacency,
        Design,
        GaussianNoise,
        NoiseAt,
        Protocol,
        certify,
        down,
        dp_accounting,
        mo,
        up,
    )


@app.cell
def _(mo):
    mo.md("""
    # What does your Flower run cost in privacy?

    You have a Flower app with central differential privacy: the strategy clips the update of each
    client, sums the updates of a round, and adds Gaussian noise with multiplier 1. It runs for
    100 rounds, and the server selects some clients for each round. Flower is not needed to run
    this notebook.

    ## What can be claimed today

    A Flower server selects among the clients that happen to be online. Nobody knows the
    probability that a client is selected. So Flower's accountant assumes that a client may be in
    every round:
    """)
    return


@app.cell
def _(dp_accounting, up):
    every_round = dp_accounting.rdp.RdpAccountant()
    every_round.compose(dp_accounting.GaussianDpEvent(1.0), 100)
    up(float(every_round.get_epsilon(1e-6)))
    return


@app.cell
def _(mo):
    mo.md("""
    If the server could select each of 10,000 clients with probability 1/100 in each round, the ε
    of Poisson sampling would hold. It is a guess twice: about the number of clients, and about
    who is online. If there are only 2,000 clients and a round still has 100 of them, the
    probability is 1/20:
    """)
    return


@app.cell
def _(dp_accounting, up):
    def poisson(probability):
        accountant = dp_accounting.pld.PLDAccountant()
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(probability, dp_accounting.GaussianDpEvent(1.0)),
            100,
        )
        return float(accountant.get_epsilon(1e-6))

    guessed, true = up(poisson(1 / 100)), up(poisson(1 / 20))
    guessed, true
    return guessed, true


@app.cell
def _(mo):
    mo.md("""
    ## What can be proved with check-ins

    Let each client draw one of the 100 rounds by itself. The certificate then needs neither the
    number of clients nor a server that selects them:
    """)
    return


@app.cell
def _(Adjacency, Design, GaussianNoise, NoiseAt, Protocol, certify, down, up):
    noise = GaussianNoise(1.0, NoiseAt.SERVER)
    design = Design(Protocol.FIXED, slots=100, participation=1.0, randomizer=noise)
    certificate = certify(design, delta=1e-6, adjacency=Adjacency.ADD_REMOVE)
    down(certificate.epsilon_lower), up(certificate.epsilon)
    return (certificate,)


@app.cell
def _(certificate, guessed, mo, true, up):
    mo.md(f"""
    | claim | ε at δ = 10⁻⁶ | it is true if |
    |---|---|---|
    | Poisson sampling | {guessed} | the server samples 10,000 clients who are always online |
    | Poisson sampling | {true} | the same with 2,000 clients |
    | random check-ins | {up(certificate.epsilon)} | each client draws its own round |
    """)
    return


@app.cell
def _(mo):
    mo.md("""
    In exchange, each client takes part in one round only, so a campaign needs more clients for
    the same number of updates per round. With several runs (`repeats`), a client takes part once
    in each of them. Your ClientApp need not change: see "Coming from Flower" in the documentation.
    """)
    return


if __name__ == "__main__":
    app.run()
