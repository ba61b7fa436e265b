"""The engine of a simulation: one compiled loop over the slots of a campaign."""
