"""The exact accountant: distributions of a campaign's likelihood ratio, bounded from both sides."""
