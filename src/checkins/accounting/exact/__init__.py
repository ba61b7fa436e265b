"""The exact accountant: bounds on the likelihood ratio of all releases with and without client."""
