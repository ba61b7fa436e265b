"""Who may do what when; for now, the file that says what a campaign is."""
