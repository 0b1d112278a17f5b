"""Agents to read and run. The project's own tests run them too."""
