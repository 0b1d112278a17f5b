"""`make demo`: an access review that is killed, cut off, kept waiting and let down by its network.

Every part is a process of its own, as it would be in production: the directory, a gateway and two
workers. What happened is told afterwards, from the database and the directory's own counters.
"""


class DemoFailed(Exception):
    """The demo could not be given; the text is for whoever wanted to see it."""
