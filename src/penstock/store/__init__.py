"""The embedded store: a placement driver and TiKV stores in one process, on TiKV's wire protocol."""
