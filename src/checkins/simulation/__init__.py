"""The protocol on a virtual clock: one compiled loop, any population, nothing private."""
