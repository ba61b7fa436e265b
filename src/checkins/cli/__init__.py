"""The command line: ``commands`` runs each command, ``views`` prints its tables and plots."""
