"""What the small servers of the examples share."""
