"""Privacy amplification via random check-ins."""

__version__ = "0.1.0"
