"""An agent that obeys commands, for tests."""
