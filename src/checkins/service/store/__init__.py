"""What a coordinator keeps: tables, transactions, migrations. The database is the shared engine."""
