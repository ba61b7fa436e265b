"""The protocol: state machines of server and clients without I/O, and their messages."""
