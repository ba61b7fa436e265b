"""The network service: slots that close by the clock, over HTTP and one database."""
