"""Reads a directory of changes that Penstock's sink or TiCDC's wrote: in order, up to its checkpoint."""
