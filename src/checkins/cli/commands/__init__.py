"""The commands of ``checkins``, one module for each or for two that belong together.

``checkins --help`` imports all of them, so a module here imports the accountant, the simulator or
the service inside its functions.
"""
