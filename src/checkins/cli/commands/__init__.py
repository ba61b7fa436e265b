"""The commands of ``checkins``, one module for each.

``main`` imports all of them to print its help, so a module here imports the accountant, the
simulator or the service inside its functions.
"""
