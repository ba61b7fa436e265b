"""What runs beside the event loop: threads, background tasks, processes."""
