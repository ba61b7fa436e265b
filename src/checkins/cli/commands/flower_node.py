"""`checkins flower-node` runs a Flower SuperNode that is online in one slot of a campaign only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from checkins.cli import params, terminal
from checkins.cli.params import CAMPAIGN_FILE_ARGUMENT, GivenOptions, options

if TYPE_CHECKING:
    from checkins.campaign import Campaign
    from checkins.flower.gate import NodeOutcome

SUPERNODE_OPTIONS = {
    "superlink": "--superlink",
    "key": "--auth-supernode-private-key",
    "ca": "--root-certificates",
    "port": "--port",
    "node_config": "--node-config",
    "trusted_entities": "--trusted-entities",
}
"""Maps each option that is passed on to its name in `flower-supernode`."""


@params.command(
    CAMPAIGN_FILE_ARGUMENT,
    *options("""
    --superlink HOST:PORT  Address of the SuperLink. The connection is always encrypted. Required.
    --key FILE  Private key of the SuperNode, whose public key is registered at the SuperLink. A
        node without a key would be a new node at each start. Required.
    --state DIR  Folder for the saved state of this node. Use the same folder each time, and no
        other node's. Required.
    --ca FILE  PEM file with the certificate authority of the SuperLink. Default: the public
        authorities.
    --seal SHA256  Take part only if the campaign has this seal (its hash), sha256:...
    --port N  Port of this machine at which the SuperNode serves its own ClientApp. It must be free
        and differ between nodes on one machine. Default: that of flower-supernode.
    --node-config TEXT  Configuration of the node, as in flower-supernode.
    --trusted-entities FILE  YAML file with the public keys of those whose apps may run here, as in
        flower-supernode. Default: every app that the SuperLink sends.
    """),
    params.JSON_OPTION,
)
def flower_node(given: GivenOptions) -> None:
    """Run a Flower SuperNode that takes part in a campaign at most once.

    The gate draws at random whether the node takes part and in which slot, and saves the draw. It
    starts flower-supernode in this slot only and ends it after the slot. Before and after that,
    the node is offline. After a crash or Ctrl-C, the same command continues. The clock of this
    machine must be right, for example by NTP. The server side is
    checkins.flower.strategy.RandomCheckIns.

    Exit code 0: the participation ended. 2: the campaign or an option is wrong.
    """
    from checkins.campaign import read_campaign

    given.required("superlink", "must be HOST:PORT")
    key = given.required("key", "must be the private key file of this SuperNode")
    folder = Path(given.required("state", "must be a folder for the saved state of the node"))
    campaign = read_campaign(given.values["file"]).campaign
    if "seal" in given and given.texts["seal"] != campaign.seal:
        raise given.invalid("seal", f"the campaign file has the seal {campaign.seal}")
    if "port" in given:
        given = given.replacing(port=str(given.integer("port", most=2**16 - 1)))
    from checkins.flower.gate import Gate, SuperNode, key_fingerprint

    passed_on = [
        text
        for name, option in SUPERNODE_OPTIONS.items()
        if name in given
        for text in (option, given.texts[name])
    ]
    with given.errors_as_option_errors():
        gate = Gate(campaign, SuperNode(passed_on), key_fingerprint(key), folder)
        if not given.json:
            _show_campaign(campaign)
        outcome = gate.run()
    _show_outcome(campaign, outcome, json=given.json)


def _show_campaign(campaign: Campaign) -> None:
    from checkins.cli.views.certificate import slot_description

    terminal.show_plain(f"Campaign {campaign.name}, {campaign.seal}")
    terminal.show(
        slot_description(campaign),
        "The node stays offline until its slot, which is not shown. Ctrl-C stops it; the same"
        " command continues.",
    )


def _show_outcome(campaign: Campaign, outcome: NodeOutcome, *, json: bool) -> None:
    if json:
        about = {"name": campaign.name, "seal": campaign.seal}
        ended = {"outcome": outcome.name.lower(), "explained": str(outcome)}
        terminal.show_json({**about, **ended})
    else:
        terminal.show_plain(f"{campaign.name}: {outcome}.")
