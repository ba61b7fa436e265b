import marimo

app = marimo.App()


@app.cell
def _():
    import subprocess
    import sys
    import tempfile
    from pathlib import Path

    import marimo as mo

    from checkins.campaign import parse_campaign
    from checkins.campaign.file import Template, template_text
    from checkins.formatting import down, up
    from checkins.ledger import lines, verify
    from checkins.ledger.entry import InvalidLedger

    return (
        InvalidLedger,
        Path,
        Template,
        down,
        lines,
        mo,
        parse_campaign,
        subprocess,
        sys,
        tempfile,
        template_text,
        up,
        verify,
    )


@app.cell
def _(mo):
    mo.md("""
    # What does a coordinator publish, and what can you prove with it?

    You run campaigns, and answer for two files: the campaign file, which you open, and the
    ledger, which the coordinator writes. This notebook looks at both.

    ## Before: the file and its seal

    `checkins init` writes this file. The seal is a hash of every parameter. Devices refuse a
    coordinator whose parameters do not have the seal that they were told, and a changed file is
    another campaign:
    """)
    return


@app.cell
def _(Template, parse_campaign, template_text):
    campaign = parse_campaign(template_text(Template.PATIENTS)).campaign
    other = parse_campaign(
        template_text(Template.PATIENTS).replace("participation = 1.0", "participation = 0.9")
    ).campaign
    campaign.seal, other.seal
    return


@app.cell
def _(mo):
    mo.md("""
    ## After: the ledger

    This runs a whole campaign of 400 clients in one process, with noise from the operating
    system, as a coordinator and its devices would:
    """)
    return


@app.cell
def _(Path, mo, subprocess, sys, tempfile):
    example = Path(mo.notebook_dir() or ".").parent / "small_campaign.py"
    folder = Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, example, folder], check=True, capture_output=True)
    ledger = (folder / "ledger.jsonl").read_bytes()
    len(ledger.splitlines())
    return folder, ledger


@app.cell
def _(mo):
    mo.md("""
    One line opens the campaign, 40 lines hold the sums of the slots and the hashes of the models,
    and one line closes the campaign with its certificate. No line counts or names people. Anyone
    can recompute every model and every ε from it, as `checkins verify` does:
    """)
    return


@app.cell
def _(down, folder, lines, up, verify):
    verified = verify(lines(folder / "ledger.jsonl"))
    down(verified.certificate.epsilon_lower), up(verified.certificate.epsilon)
    return


@app.cell
def _(mo):
    mo.md("""
    ## If somebody changes it

    Every line contains the hash of the line before it. Whoever kept the last hash notices any
    change:
    """)
    return


@app.cell
def _(InvalidLedger, ledger, verify):
    changed = ledger.replace(b'"slot":7', b'"slot":8', 1)
    try:
        verify(changed.splitlines(keepends=True))
    except InvalidLedger as refusal:
        answer = str(refusal)
    answer
    return


@app.cell
def _(mo):
    mo.md("""
    The owner of a ledger can rewrite all of it, with new hashes. So publish its last hash, sign
    it (`checkins signing-key`), and let devices remember it, as they do by themselves. The page
    `/read` of every service makes the same checks in a browser.
    """)
    return


if __name__ == "__main__":
    app.run()
