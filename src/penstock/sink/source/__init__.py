"""Where changefeeds read: changes out of the event store, and the DDLs between them."""
