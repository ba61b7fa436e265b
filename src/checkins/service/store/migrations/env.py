"""Configuration of alembic. ``schema.migrate`` passes the connection with its transaction."""

from alembic import context

from checkins.service.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
