"""Where a changefeed writes: the contract of a sink, and one folder for each kind of sink."""
