"""Change streams: the store sends clients the changes of their regions.

A change goes from the storage through the delegate of its region to the subscriptions, and from there into
the outbox of a client's stream. A new subscription begins with an incremental scan.
"""
