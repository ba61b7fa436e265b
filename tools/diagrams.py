"""Print the state diagram of a state machine, generated from its table of transitions.

python tools/diagrams.py slot|server|participant
"""

from __future__ import annotations

import argparse

from checkins.protocol.participant import PARTICIPANT_MACHINE
from checkins.protocol.server import SERVER_MACHINE
from checkins.protocol.slot import SLOT_MACHINE

MACHINES = {
    machine.name: machine for machine in (SLOT_MACHINE, SERVER_MACHINE, PARTICIPANT_MACHINE)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("machine", choices=MACHINES)
    print(MACHINES[parser.parse_args().machine].diagram())


if __name__ == "__main__":
    main()
