"""Following a growing event store: owners, progress, holds, DDLs, slices and scans."""
