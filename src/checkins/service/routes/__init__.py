"""Routes: parse, hand over, answer. What may be done when is decided by the machines."""
