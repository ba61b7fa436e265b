"""The database of a coordinator: tables, transactions, queries, migrations, rollback checks."""
