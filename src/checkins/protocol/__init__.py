"""Who may do what when: pure state machines, the campaign file, its spending, the ledger."""
