"""The wire protocol: messages, services and key encoding, shared by client and store."""
