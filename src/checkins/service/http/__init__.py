"""HTTP below the routes: problem documents, limits, and what is changed in uvicorn."""
