"""Reading a directory of changes, as Penstock's sink or TiCDC's wrote it: in order, up to its checkpoint."""
