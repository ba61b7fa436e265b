"""The exact accountant bounds the likelihood ratio of all releases with and without a client."""
