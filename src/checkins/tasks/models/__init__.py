"""Models of tasks, with losses for JAX and gradients for numpy, and models of users."""
