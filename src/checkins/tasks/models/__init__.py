"""Models of tasks: losses for JAX and gradients for numpy, and models that users bring."""
