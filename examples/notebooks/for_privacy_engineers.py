import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    from checkins.accounting import (
        Adjacency,
        Design,
        GaussianNoise,
        NoiseAt,
        Parameter,
        Protocol,
        calibrate,
        certify,
    )
    from checkins.formatting import down, up

    return (
        Adjacency,
        Design,
        GaussianNoise,
        NoiseAt,
        Parameter,
        Protocol,
        calibrate,
        certify,
        down,
        mo,
        up,
    )


@app.cell
def _(mo):
    mo.md("""
    # What does a design cost in privacy?

    You are asked whether a campaign may run. It has 200 time steps (slots). Every client takes
    part once, in a slot that it draws itself. The server clips each update to norm 1, sums the
    updates of a slot, and adds Gaussian noise. What is ε?
    """)
    return


@app.cell
def _(Adjacency, Design, GaussianNoise, NoiseAt, Protocol, certify, down, up):
    def with_noise(sigma):
        return Design(
            Protocol.FIXED,
            slots=200,
            participation=1.0,
            randomizer=GaussianNoise(sigma, NoiseAt.SERVER),
        )

    certificate = certify(with_noise(1.0), delta=1e-6, adjacency=Adjacency.ADD_REMOVE)
    down(certificate.epsilon_lower), up(certificate.epsilon)
    return certificate, with_noise


@app.cell
def _(mo):
    mo.md("""
    No smaller ε than the first number holds for this design, and the second number is proved. A
    certificate is worth as much as its assumptions. Go through them one by one, and ask who makes
    each of them true:
    """)
    return


@app.cell
def _(certificate, mo):
    mo.md("\n".join(f"- {assumption}" for assumption in certificate.assumptions))
    return


@app.cell
def _(mo):
    mo.md("""
    ## How much noise does a budget need?

    The policy of your organization says ε ≤ 0.5 at δ = 10⁻⁶. `calibrate` finds the smallest noise
    with a proved ε below that:
    """)
    return


@app.cell
def _(Adjacency, Parameter, calibrate, up, with_noise):
    found = calibrate(
        with_noise(1.0),
        parameter=Parameter.NOISE_MULTIPLIER,
        epsilon=0.5,
        delta=1e-6,
        adjacency=Adjacency.ADD_REMOVE,
    )
    up(found.value), up(found.certificate.epsilon)
    return


@app.cell
def _(mo):
    mo.md("""
    ## What if the campaign is run again on the same people?

    Each run has new draws, and the certificate is about all runs together. ε grows more slowly
    than the number of runs:
    """)
    return


@app.cell
def _(Adjacency, certify, mo, up, with_noise):
    runs = {
        count: certify(
            with_noise(1.0), delta=1e-6, adjacency=Adjacency.ADD_REMOVE, campaigns=count
        ).epsilon
        for count in (1, 2, 5)
    }
    mo.md(
        "| runs | ε at most |\n|---|---|\n"
        + "".join(f"| {count} | {up(epsilon)} |\n" for count, epsilon in runs.items())
    )
    return


@app.cell
def _(mo):
    mo.md("""
    ## And if the server is the adversary?

    Noise at the server protects only what the server publishes. The certificate says so:
    """)
    return


@app.cell
def _(certificate):
    certificate.against_server.note
    return


if __name__ == "__main__":
    app.run()
