"""An app for tests, whose clock stands still unless a test moves it."""
