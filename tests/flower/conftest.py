"""Import Flower before the tests do: typer, which it needs, uses what click has deprecated."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import flwr.clientapp
    import flwr.serverapp  # noqa: F401
