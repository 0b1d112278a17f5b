"""What tests of Outlast, and of agents written for it, are made of. Not for production."""
