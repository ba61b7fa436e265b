"""How alembic runs our migrations: within the transaction that ``migration.migrate`` holds."""

from alembic import context

from checkins.service.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
