"""The network service of a coordinator. It speaks HTTP and stores all state in one database."""
