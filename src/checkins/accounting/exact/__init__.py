"""The exact accountant, which bounds the distribution of a campaign's likelihood ratio."""
