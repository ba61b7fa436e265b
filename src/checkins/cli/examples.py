"""Examples that the help of each command ends with."""

from __future__ import annotations

EXAMPLES = {
    "checkins": (
        "checkins account --protocol fixed --slots 100 --participation 1 \\\n"
        "    --noise-at server --noise-multiplier 1 --delta 1e-6 \\\n"
        "    --adjacency add-remove",
        "checkins init --task patients --out campaign.toml",
        "checkins simulate campaign.toml",
    ),
    "account": (
        "checkins account --protocol fixed --slots 1000 --participation 1 \\\n"
        "    --local-epsilon 1 --delta 1e-6 --adjacency add-remove",
        "checkins account campaign.toml",
    ),
    "calibrate": (
        "checkins calibrate --protocol fixed --slots 1000 --participation 1 \\\n"
        "    --noise-at server --epsilon 0.5 --solve noise-multiplier \\\n"
        "    --delta 1e-6 --adjacency add-remove",
    ),
    "init": ("checkins init --task patients --out campaign.toml",),
    "plan": (
        "checkins plan --task patients --population 15000..20000 --epsilon 0.5 \\\n"
        "    --delta 1e-6 --adjacency add-remove --out campaign.toml",
    ),
    "check": ("checkins check campaign.toml", "checkins check campaign.toml --json"),
    "simulate": (
        "checkins simulate campaign.toml --seeds 5 --baselines all --out out",
        "checkins simulate campaign.toml --data visits.csv \\\n"
        "    --client-column person --label-column outcome",
    ),
    "audit": ("checkins audit campaign.toml", "checkins audit campaign.toml --seconds 60"),
    "serve": (
        "checkins serve campaign.toml --start +60",
        "checkins serve campaign.toml --allow-list keys.txt --host 0.0.0.0 \\\n"
        "    --tls-cert fullchain.pem --tls-key privkey.pem",
    ),
    "join": (
        "checkins join https://campaigns.example --data my-visits.csv \\\n"
        "    --state ~/.checkins --most-epsilon 3",
    ),
    "swarm": ("checkins swarm http://127.0.0.1:8470 --clients 2000",),
    "export": ("checkins export http://127.0.0.1:8470 --out model.safetensors",),
    "backup": ("checkins backup --store sqlite:///checkins.db --out checkins-copy.db",),
    "allow-list": (
        "checkins allow-list https://campaigns.example --add keys.txt \\\n"
        "    --operator-token-file operator.token",
    ),
    "operators": (
        "checkins operators https://campaigns.example --add alice \\\n"
        "    --out alice.token --operator-token-file operator.token",
    ),
    "signing-key": ("checkins signing-key --out signing.key",),
    "verify": (
        "checkins verify http://127.0.0.1:8470",
        "checkins verify out/small-campaign --closed",
    ),
    "paper": ("checkins paper table1", "checkins paper theorems --json"),
    "completion": ('eval "$(checkins completion bash)"',),
}
"""Maps each command to complete command lines, which a user can copy and adapt."""


def epilog(command: str) -> str:
    """Return the examples of a command as the last part of its help."""
    lines = "\n".join(f"  $ {example}" for example in EXAMPLES[command])
    lines = lines.replace("\\\n", "\\\n  ")
    return f"\b\nExamples:\n{lines}"
