"""Configuration of alembic. Migrations run in the transaction of ``schema.migrate``."""

from alembic import context

from checkins.service.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
context.run_migrations()
