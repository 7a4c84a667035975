"""The embedded models: tiny models, and the small synthetic world that they know."""
