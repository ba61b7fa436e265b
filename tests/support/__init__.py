"""Scaffolding that tests share. Only these modules start coordinators, clients and browsers.

======================  ============================================================================
``campaigns``           builds campaign files and campaigns; the campaigns of the fault tests
``certificates``        TLS certificates that sign themselves
``clock``               clocks that move only when a test moves them
``store``               drives the store of a coordinator step by step, without threads
``in_process``          runs the app of a coordinator in this process, without a socket
``coordinator``         runs `checkins serve` in a process that can be killed and started again
``crowd``               runs many devices: the swarm of the SDK, or bare connections
``crashing_devices``    runs devices that are killed at a given step and started again
``journal``             records what devices do, for a check afterwards
``forks``               forks processes from one process that has imported everything
``program``             runs the program `checkins`, and Python code in processes
``postgres``            starts a PostgreSQL cluster in a temporary folder
``browser``             opens pages in the system's chromium
``accessibility``       finds barriers for screen readers and keyboards with axe-core
``fake_service``        answers devices as the service does, in memory or on a socket
``proxy``               delays, cuts and repeats requests between devices and a coordinator
``silent_proxy``        stops to pass on bytes between a coordinator and its store
``hostile_service``     answers devices with harmful responses, on a socket
``http_server``         serves a handler of ``http.server`` on a free port
``raw_http``            sends and parses HTTP as bytes
``flower``              a grid in this process in place of Flower's SuperLink, and its campaigns
``file_clock``          a clock in a file, for processes whose time a test moves
``gate_process``        runs the gate of a Flower node in a process that can be killed
``waiting``             waits until a condition holds
======================  ============================================================================

``tests/soak.py`` lists the cases that only ``make soak`` runs, and ``tests/strategies.py`` has the
strategies of Hypothesis.
"""
