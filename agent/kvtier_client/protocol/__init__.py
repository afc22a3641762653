"""The wire protocol between a client and its local agent. The format's page: docs/protocol.md."""
