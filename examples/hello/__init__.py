"""The smallest agent."""
