"""HTTP below the routes: problem documents, limits, and hooks into uvicorn."""
