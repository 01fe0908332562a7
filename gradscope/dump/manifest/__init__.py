"""The manifest: what a dump says about itself, and its JSON."""
