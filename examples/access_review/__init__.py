"""A quarterly access review: the example that the tests and the demo run."""
