"""The command line: commands in ``commands``, tables and plots for people in ``views``."""
