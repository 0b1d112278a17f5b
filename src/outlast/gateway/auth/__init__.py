"""Who calls. Nothing here knows a binding: each hands its headers or metadata to a `Gate`."""
