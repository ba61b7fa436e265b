"""Printed tables and plots of certificates, campaigns, audits, simulations and plans."""
