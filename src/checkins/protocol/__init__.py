"""The protocol: pure state machines of server and clients, and what they exchange."""
