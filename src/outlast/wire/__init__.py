"""A2A's types, made of our values and back: the only place, with gateway and client, that has them.

Nothing here reads or writes a store, so that a gateway, a webhook and a cache of folded tasks all
render the same event in the same way.
"""
