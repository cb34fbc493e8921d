"""Changefeeds: they replicate the changes of tables to files on object storage, and read such files back."""
