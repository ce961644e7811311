"""The server: an engine that batches denoising steps, an HTTP API over it, and a playground."""
