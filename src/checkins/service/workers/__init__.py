"""Work outside of the event loop: threads, background tasks, processes."""
