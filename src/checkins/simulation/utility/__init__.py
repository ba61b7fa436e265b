"""The theorems on utility, held against simulated campaigns on problems whose optimum is known."""
