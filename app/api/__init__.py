"""The API over HTTP: walls first, then one file a resource. Handlers hold no SQL."""
