"""The agent under test in the A2A conformance suite."""
