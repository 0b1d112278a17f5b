"""A model that streams, tools in parallel, approval for the dangerous ones."""
