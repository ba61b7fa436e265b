"""Random check-ins for Flower: apps as devices of a coordinator, and inside Flower's own server.

Only this package and its subprocesses import ``flwr``, which needs an environment of its own
(``constraints/flower.txt``).
"""
