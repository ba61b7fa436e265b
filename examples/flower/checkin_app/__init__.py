"""A Flower app whose clients take part by random check-ins."""
