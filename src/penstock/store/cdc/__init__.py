"""Change streams: what the store tells a client of the changes in its regions.

A change goes from the storage through the delegate of its region to subscriptions, and from there
into the outbox of a client's stream; a new subscription is fed by an incremental scan first.
"""
