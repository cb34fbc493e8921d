"""What is on the remote: its layout, schema files, numbers, indexes, and the options that decide them."""
