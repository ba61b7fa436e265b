"""Figures measured side by side with the alternatives, in one run, as ratios."""
