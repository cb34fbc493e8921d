"""Where jobs read: tables of the event store, and the net effect of their changes."""
