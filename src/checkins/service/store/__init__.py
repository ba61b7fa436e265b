"""The store of a coordinator: tables, transactions, queries, migrations, rollback detection."""
