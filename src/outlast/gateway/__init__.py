"""A2A calls, translated into reads and writes on the store. A gateway holds no task state.

Any number of gateways serve one store, and each can be killed at any instant: what it had
answered is in the store, and what it had not can be asked again, here or at another one.
"""
