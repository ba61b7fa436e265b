"""What people read: certificates, campaigns, audits, simulations and plans as tables and plots."""
